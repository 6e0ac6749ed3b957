"""Tests that a private file gives its secret, and that others are refused."""

from pathlib import Path

import pytest

from launcher.state.secret_files import objections, value
from nemo_vfm.core.errors import UserError


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file as it should be."""
    file = tmp_path / "key"
    file.write_text("canary-value\nmore\n")
    file.chmod(0o600)
    return file


def test_a_private_file_gives_its_first_line(key: Path):
    assert value("KEY", key) == "canary-value" and not list(objections({"KEY": key}))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_others_can_open_is_refused_and_its_content_is_not_told(key: Path, mode):
    key.chmod(mode)
    (said,) = objections({"KEY": key})
    assert f"mode {mode:04o}" in said and "chmod 600" in said and "canary" not in said
    with pytest.raises(UserError, match=r"cluster\.secrets\.KEY"):
        value("KEY", key)


def test_a_file_that_is_not_there_empty_a_folder_or_relative_is_refused(key: Path, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.touch(mode=0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    found = {"A": tmp_path / "none", "B": empty, "C": tmp_path / "folder", "D": Path("key")}
    said = list(objections(found))
    assert len(said) == 4 and "No such file" in said[0] and "absolute path" in said[3]
