"""Tests that the listed long test files exist and are started first."""

from dataclasses import dataclass

from tests.support.longest import SECONDS, longest_first
from tests.support.repository import ROOT


@dataclass(frozen=True)
class Named:
    """A test's name."""

    nodeid: str


def test_every_file_that_is_said_to_be_long_is_there():
    assert not [file for file in SECONDS if not (ROOT / file).is_file()]
    assert list(SECONDS.values()) == sorted(SECONDS.values(), reverse=True), "the longest stands first"


def test_long_files_are_begun_before_those_with_many_tests_and_a_file_stays_together():
    longest, second, *_ = SECONDS
    names = ["tests/a.py::b", "tests/a.py::a", "tests/b.py::x", f"{second}::x", f"{longest}::z", f"{longest}::a[1::2]"]
    found = [test.nodeid for test in longest_first(map(Named, names))]
    assert found == [f"{longest}::z", f"{longest}::a[1::2]", f"{second}::x", *names[:3]]


def test_make_test_keeps_that_order():
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "--dist loadfile" in line]
    assert "--no-loadscope-reorder" in line
