"""Tests that the listed long test files exist and are started first."""

from dataclasses import dataclass

from tests.support.longest import SECONDS, TOGETHER, longest_first
from tests.support.repository import ROOT
from tests.support.scheduler import FilesTogether


@dataclass(frozen=True)
class Named:
    nodeid: str


def test_every_file_that_is_said_to_be_long_is_there():
    assert not [file for file in (*SECONDS, *TOGETHER) if not (ROOT / file).is_file()]
    assert list(SECONDS.values()) == sorted(SECONDS.values(), reverse=True), "the longest stands first"


def test_long_files_are_begun_before_those_with_many_tests_and_a_file_stays_together():
    longest, second = next(iter(TOGETHER)), next(file for file in SECONDS if file not in TOGETHER)
    beside = next(file for file in TOGETHER if TOGETHER[file] == TOGETHER[longest] and file != longest)
    names = ["tests/a.py::b", "tests/a.py::a", "tests/b.py::x", f"{beside}::y", f"{second}::x", f"{longest}::z",
             f"{longest}::a[1::2]"]  # fmt: skip
    found = [test.nodeid for test in longest_first(map(Named, names))]
    assert found == [f"{longest}::z", f"{longest}::a[1::2]", f"{beside}::y", f"{second}::x", *names[:3]]


def test_files_that_share_something_go_to_one_process_and_others_alone():
    groups = [FilesTogether._split_scope(None, f"{file}::x") for file in ("tests/a.py", *TOGETHER)]
    assert groups == ["tests/a.py", *TOGETHER.values()]


def test_make_test_keeps_that_order():
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "--dist loadfile" in line]
    assert "--no-loadscope-reorder" in line
