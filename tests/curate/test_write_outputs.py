"""Tests that a folder is replaced whole or stays as it was."""

import pytest

from nemo_vfm.curate.output.write_outputs import replace_folder


def test_a_folder_that_cannot_be_filled_stays_as_it_was_and_takes_no_room(tmp_path):
    folder = tmp_path / "shards"
    replace_folder(folder, lambda partial: (partial / "old").write_text("whole") and None)

    def run_out(partial):
        (partial / "new").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_folder(folder, run_out)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["shards", "shards/old"]
