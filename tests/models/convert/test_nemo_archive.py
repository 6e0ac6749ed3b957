"""Tests that NeMo archives give their configuration as text, and their weights."""

import pytest
import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.foreign import read_nemo
from tests.support.foreign_files import CONFIG, nemo, saved

WEIGHTS = {"encoder.w": torch.arange(6.0).reshape(2, 3)}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_an_archive_is_read_and_its_configuration_stays_text(tmp_path, packed, prefix):
    members = {"model_config.yaml": CONFIG.encode(), "model_weights.ckpt": saved(WEIGHTS), "tokenizer.model": b"x" * 9}
    path = tmp_path / "model.nemo"
    path.write_bytes(nemo({prefix + name: data for name, data in members.items()}, packed=packed))
    archive = read_nemo(path)
    assert archive.config == CONFIG and archive.others == ("tokenizer.model",)
    assert torch.equal(archive.weights["encoder.w"], WEIGHTS["encoder.w"])


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"a.txt": b""}, "holds model_config.yaml and model_weights.ckpt; this one holds a.txt"),
        ({"model_config.yaml": b"", "model_weights/.metadata": b"", "model_weights/__0_0.distcp": b""}, "distributed"),
        ({"model_config.yaml": b"", "mp_rank_00/model_weights.ckpt": b""}, "split over several GPUs"),
    ],
)
def test_an_archive_of_another_kind_is_refused_with_what_to_do(tmp_path, members, sentence):
    path = tmp_path / "model.nemo"
    path.write_bytes(nemo(members))
    with pytest.raises(DataError, match=sentence):
        read_nemo(path)
