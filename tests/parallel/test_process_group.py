"""Tests that each rank hears why the ranks do not start, however late it reads it."""

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.support.preloaded import Started

pytestmark = pytest.mark.cluster  # several ranks

SLOW = """
import sys, time
from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.ranks import process_group

class Late:
    def __init__(self, store):
        self._store = store
    def get(self, name):
        time.sleep(2.0)
        return self._store.get(name)
    def __getattr__(self, name):
        return getattr(self._store, name)

connect = process_group.connect
if sys.argv[1] == "late":
    process_group.connect = lambda *given, **named: Late(connect(*given, **named))
try:
    process_group._meet(sys.argv[2], float(sys.argv[3]))
except UserError as error:
    print(error)
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Meeting:
    def __init__(self, folder: Path, port: int, count: int) -> None:
        self._folder, self._port, self._count = folder, port, count
        self._running: list[Started] = []

    def begin(self, *words: str) -> None:
        rank = len(self._running)
        named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self._count, "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": self._port}  # fmt: skip
        environment = {**os.environ, **{name: str(value) for name, value in named.items()}}
        command = [sys.executable, "-c", SLOW, *words]
        self._running.append(Started(command, err=self._folder / f"rank-{rank}", env=environment))

    def said(self) -> list[str]:
        for one in self._running:
            one.wait(120)
        return [(self._folder / f"rank-{rank}").read_text() for rank in range(len(self._running))]


def test_rank_0_stays_until_the_others_have_read_what_they_are_refused_for(port: int, tmp_path: Path):
    meeting = Meeting(tmp_path, port, 2)
    meeting.begin("in time", "a recipe", "60")
    meeting.begin("late", "another", "60")
    for said in meeting.said():
        assert "rank 1 of 2 was given a different recipe than rank 0" in said


def test_a_rank_whose_store_goes_is_told_whose_output_to_look_at(port: int, tmp_path: Path):
    meeting = Meeting(tmp_path, port, 3)
    meeting.begin("in time", "a recipe", "8")
    meeting.begin("in time", "a recipe", "60")
    first, second = meeting.said()
    assert "rank 2 of 3 did not join within 8 s" in first or "rank 1, 2 of 3 did not join within 8 s" in first
    assert "rank 1 reached rank 0 at" in second and "see its output" in second
