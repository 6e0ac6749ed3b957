"""Tests that each rank hears why the ranks do not start, however late it reads it."""

import os
import socket
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

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


def meets(rank: int, port: int, *words: str, count: int = 2) -> subprocess.Popen[str]:
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return subprocess.Popen([sys.executable, "-c", SLOW, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                            env={**os.environ, **{name: str(value) for name, value in named.items()}})  # fmt: skip


def test_rank_0_stays_until_the_others_have_read_what_they_are_refused_for(port: int):
    both = [meets(0, port, "in time", "a recipe", "60"), meets(1, port, "late", "another", "60")]
    for running in both:
        assert "rank 1 of 2 was given a different recipe than rank 0" in running.communicate(timeout=120)[0]


def test_a_rank_whose_store_goes_is_told_whose_output_to_look_at(port: int):
    both = [meets(0, port, "in time", "a recipe", "8", count=3), meets(1, port, "in time", "a recipe", "60", count=3)]
    first, second = (running.communicate(timeout=120)[0] for running in both)
    assert "rank 2 of 3 did not join within 8 s" in first or "rank 1, 2 of 3 did not join within 8 s" in first
    assert "rank 1 reached rank 0 at" in second and "see its output" in second
