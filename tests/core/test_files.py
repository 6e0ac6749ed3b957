"""Tests that files are whole for whoever writes them at once, and which errors say that no other would succeed."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av.error
import pytest

from nemo_vfm.core.storage import files


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (av.error.FFmpegError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (ValueError("No space left on device"), False),
    ],
)
def test_a_full_disk_is_known_whoever_met_it(error, full):
    assert files.is_full(error) is full


def test_the_last_records_of_a_file_come_newest_first_without_rubbish(tmp_path: Path) -> None:
    lines = [b'{"step": 1}', b"not json", b"[3]", b'{"step": 4}', b'{"step": 5', b"\xff\xfe"]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert list(files.last_records(tmp_path / "metrics.jsonl")) == [{"step": 4}, {"step": 1}]
    assert list(files.last_records(tmp_path / "metrics.jsonl", 30)) == [{"step": 4}]  # the first is cut off
    assert list(files.last_records(tmp_path / "absent")) == []


def test_the_hash_of_a_folder_is_that_of_the_paths_and_bytes_of_all_its_files(tmp_path: Path) -> None:
    trees = ({"a": "1", "b/c": "2"}, {"a": "1", "b/c": "3"}, {"a": "1", "b/d": "2"}, {"a": "1", "d/c": "2"},
             {"a": "2", "b/c": "1"}, {"a": "1"})  # fmt: skip
    for number, tree in enumerate((*trees, trees[0])):
        for name, text in tree.items():
            files.write_text(tmp_path / str(number) / name, text)
    found = [files.sha256_folder(tmp_path / str(number)) for number in range(len(trees) + 1)]
    assert len(set(found)) == len(trees) and found[-1] == found[0]


def test_two_threads_that_write_one_file_at_once_both_succeed(tmp_path: Path) -> None:
    """As two workers do that look at copies of one clip."""
    path = tmp_path / "same.json"
    with files.atomic_path(path) as unfinished, ThreadPoolExecutor(1) as other:
        unfinished.write_text("one")
        other.submit(files.write_text, path, "other").result()
        assert path.read_text() == "other" and unfinished.read_text() == "one"
    assert path.read_text() == "one" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("name", ["n" * 251 + ".mp4", "\u00fc" * 125 + ".json", "x." + "s" * 250])
def test_a_name_as_long_as_a_file_may_have_can_be_written(tmp_path: Path, name: str) -> None:
    files.write_text(tmp_path / name, "whole")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["whole"]
    assert files.is_file(tmp_path / name) and not files.is_file(tmp_path / f"{name}.json")


def test_a_name_that_is_no_text_comes_back_from_json_as_it_was(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xc3\xbc.mp4")
    files.write_json(tmp_path / "names.json", {"name": name})
    assert files.read_json(tmp_path / "names.json") == {"name": name}
    assert files.sha256_text(name) != files.sha256_text("caf\\xe9 \u00fc.mp4")
