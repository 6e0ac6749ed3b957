"""Tests that a folder is replaced whole or stays as it was."""

import pytest

from nemo_vfm.curate.output.write_outputs import replaced_folder


def test_a_folder_that_cannot_be_filled_stays_as_it_was_and_takes_no_room(tmp_path):
    folder = tmp_path / "shards"
    with replaced_folder(folder) as partial:
        (partial / "old").write_text("whole")
    with pytest.raises(OSError, match="No space"), replaced_folder(folder) as partial:
        (partial / "new").write_text("half")
        raise OSError(28, "No space left on device")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["shards", "shards/old"]
