"""Tests what a user is told whose model is not a folder here, and that `get.json` is not a part of a model."""

from pathlib import Path

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.uri import place
from nemo_vfm.models.convert.video.random_pipeline import prepare_base
from nemo_vfm.models.pretrained import checked_folder, files_sha256, fingerprint_of


@pytest.mark.parametrize("check", [checked_folder, lambda folder: prepare_base(folder, None, Path("runs"))])
@pytest.mark.parametrize(
    ("folder", "command"),
    [("nvidia/Cosmos", "hf://nvidia/Cosmos"), ("hf://nvidia/Cosmos", "hf://nvidia/Cosmos"), ("models/wan", "hf://ORG/MODEL")],
)  # fmt: skip
def test_a_missing_folder_is_reported_with_the_command_that_downloads_it(check, folder, command):
    with pytest.raises(UserError, match=f"nemo-vfm get {command} downloads"):
        check(Path(folder))


def test_a_hub_address_is_not_a_storage_url_and_the_error_names_get():
    with pytest.raises(ValueError, match=r"'hf' is not a supported URL scheme.*nemo-vfm get hf://ORG/MODEL"):
        place("hf://nvidia/Cosmos")


def test_the_record_of_get_does_not_make_it_another_model(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    before = fingerprint_of(tmp_path), files_sha256(tmp_path)
    (tmp_path / "get.json").write_text("{}")
    assert (fingerprint_of(tmp_path), files_sha256(tmp_path)) == before
    (tmp_path / "other.json").write_text("{}")
    assert fingerprint_of(tmp_path) != before[0] and files_sha256(tmp_path) != before[1]
