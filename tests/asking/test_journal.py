"""Tests that a journal gives back what it was given after any end of its process, and has one process at a time."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_vfm.asking.journal import Journal
from nemo_vfm.core.errors import UserError
from tests.support.faulty_disk import in_a_copy
from tests.support.repository import ROOT


@pytest.fixture
def file(tmp_path):
    return tmp_path / "work" / "answers.jsonl"


def put(file, **values):
    with Journal(file=file).open() as journal:
        for key, value in values.items():
            journal.put(key, value)


def kept(file):
    with Journal(file=file).open() as journal:
        return {key: value for key in "abcd" if (value := journal.get(key)) is not None}


def test_what_was_put_is_there_at_the_next_opening_and_the_last_one_counts(file):
    put(file, a={"text": "a \ud800 cat\n"}, b=[1, 2.5])
    put(file, b=None, c="", a="new")
    assert kept(file) == {"a": "new", "c": ""}
    assert len(file.read_bytes().splitlines()) == 5


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_last_line_costs_only_itself(file, cut):
    put(file, a="first", b="second, which is torn")
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    put(file, c="third")
    assert kept(file) == {"a": "first", "c": "third"}
    assert [json.loads(line)["key"] for line in file.read_text().splitlines()] == ["a", "c"]


@pytest.mark.parametrize(
    "line", [b"\n", b"\0" * 40 + b"\n", b"[" * 100_000 + b"\n", b"{}\n", b'{"key": 3, "value": 1}\n']
)
def test_a_line_that_cannot_be_read_is_passed_over(file, line):
    put(file, a="first")
    with file.open("ab") as end:
        end.write(line)
    put(file, b="second")
    assert kept(file) == {"a": "first", "b": "second"}


def test_what_was_forgotten_stays_so(file):
    with Journal(file=file).open() as journal:
        journal.put("a", 1)
        journal.put("b", 2)
        journal.forget("a")
        journal.forget("never put")
        assert journal.get("a") is None
    assert kept(file) == {"b": 2}


def test_what_a_killed_process_has_put_is_there(file):
    def die() -> None:
        with Journal(file=file).open() as journal:
            for number, key in enumerate("abc"):
                journal.put(key, number)
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_copy(die) == -signal.SIGKILL
    assert kept(file) == {"a": 0, "b": 1, "c": 2}


HOLD = """
import sys
from pathlib import Path
from nemo_vfm.asking.journal import Journal
with Journal(file=Path(sys.argv[1])).open():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_gets_a_sentence_and_the_lock_ends_with_its_process(file):
    words = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=r"answers\.jsonl is in use by another process"), Journal(file=file).open():
            pass
        other.kill()
    put(file, a=1)
    assert kept(file) == {"a": 1}


def test_a_copy_of_the_process_does_not_hold_it(file):
    def second() -> int:
        try:
            put(file, b=2)
        except UserError:
            return 7
        return 0

    with Journal(file=file).open() as journal:
        assert in_a_copy(second) == 7
        journal.put("a", 1)
    assert kept(file) == {"a": 1}


def test_stages_of_one_process_share_it_and_the_last_one_closes_it(file):
    with Journal(file=file).open() as first:
        with Journal(file=file.parent / "." / file.name).open() as second:
            second.put("a", 1)
            assert first is second
        first.put("b", 2)
    assert kept(file) == {"a": 1, "b": 2}


def test_answers_of_other_files_are_read_and_stay_as_they_are(file):
    put(file, a="own", b="own")
    other = file.with_name("other.jsonl")
    put(other, b="other", c="other", d="torn")
    torn = other.read_bytes()[:-3]
    other.write_bytes(torn)
    with Journal(file=other).open(), Journal(file=file, others=[other]).open() as journal:
        assert [journal.get(key) for key in "abcd"] == ["own", "own", "other", None]
        journal.put("c", "new")
        journal.forget("b")
        assert journal.get("c") == "new"
    assert kept(file) == {"a": "own", "c": "new"}


def test_a_full_disk_is_said_and_leaves_no_half_line(file, monkeypatch):
    write = os.write

    def full(descriptor, data):
        if len(data) > 20:
            return write(descriptor, data[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal(file=file).open() as journal:
        journal.put("a", "first")
        with monkeypatch.context() as patch, pytest.raises(UserError, match=r"No space left.*run again"):
            patch.setattr(os, "write", full)
            journal.put("b", "second, of more bytes than there is room for")
        assert journal.get("b") is None
        journal.put("c", "third")
    assert kept(file) == {"a": "first", "c": "third"}


def test_a_folder_or_a_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for place in (tmp_path, tmp_path / "link"):
        with pytest.raises(UserError, match=r"cannot open|is not a journal"), Journal(file=place).open():
            pass
    assert not Path(tmp_path / "elsewhere").exists()
