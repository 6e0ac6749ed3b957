"""Tests what is remembered of a file that could not be read."""

from nemo_vfm.curate.examine.examine_file import ProbeFile


def test_what_the_disk_refused_is_not_a_fact_about_the_file_and_a_damaged_file_is(tmp_path):
    """Facts are kept until the file changes, and a disk or its rights may be mended before."""
    (refused,) = ProbeFile(10)({"path": str(tmp_path), "name": "a.mp4"}, lambda count: None)  # a folder cannot be read
    assert set(refused.fact) == {"failed"} and str(tmp_path) not in refused.fact["failed"]
    (tmp_path / "b.mp4").write_bytes(b"no video" * 100)
    (damaged,) = ProbeFile(10)({"path": str(tmp_path / "b.mp4"), "name": "b.mp4"}, lambda count: None)
    assert damaged.fact["source_id"] and "b.mp4" in damaged.fact["message"]
