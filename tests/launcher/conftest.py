"""Starts a real Slurm of two or three nodes, where there is one, for the tests of this folder."""

import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from launcher.plan import recipe_info
from launcher.plan.recipe_info import CommandOutput
from tests.support.fake_queue import FakeQueue
from tests.support.repository import ROOT
from tests.support.slurm import Slurm, lacking, slurm

#: Whoever comes with the partition `urgent` gets the nodes of others, who have a while to save.
PREEMPTING = ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE",
              "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF")  # fmt: skip

#: The launcher in a copy of one process, as is the run that it starts.
LAUNCHER = """\
import sys
from launcher import local_run
from launcher.cli import main
from launcher.plan import recipe_info
from tests.launcher.conftest import asking_here
from tests.support import preloaded
local_run.subprocess, recipe_info._output_of = preloaded.COMMANDS, asking_here()
sys.exit(main())
"""


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a real Slurm."""
    for item in items:
        if {"real_slurm", "three"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="module")
def real_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes of 16 cores, for all tests of a file."""
    if why := lacking():
        pytest.skip(f"tests of the launcher against a real Slurm need one: {why}")
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Three nodes, one more than any job here needs, with a second partition that goes before."""
    if why := lacking():
        pytest.skip(f"tests of the launcher against a real Slurm need one: {why}")
    partition = "PriorityTier=1 GraceTime=120"
    with slurm(tmp_path_factory.mktemp("slurm"), nodes=3, partition=partition, more=PREEMPTING) as cluster:
        yield cluster


@pytest.fixture
def slurm_here(real_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The cluster, as the one of this process's environment, whose jobs find our code."""
    monkeypatch.setenv("SLURM_CONF", str(real_slurm.conf))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return real_slurm


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_here: None) -> Path:
    """An empty working directory, beside which a test may write, too."""
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def queue(desk: Path, monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    """A queue on the path, in which nothing runs, and a working directory beside it."""
    found = FakeQueue(desk.parent / "slurm")
    monkeypatch.setenv("PATH", f"{found.bin}{os.pathsep}{os.environ['PATH']}")
    return found


def asking_here() -> Callable[[Sequence[str], object], CommandOutput]:
    """`nemo-vfm check` and `plan` in this process: each in one of its own would take some seconds to import torch."""
    from nemo_vfm.cli.main import main

    alone = threading.Lock()  # standard output is one
    known: dict[tuple[str, ...], CommandOutput] = {}  # what a recipe is does not change within a test

    def said(words: Sequence[str], found: object) -> CommandOutput:
        out, err = io.StringIO(), io.StringIO()
        with alone, redirect_stdout(out), redirect_stderr(err):
            if tuple(words) not in known:
                status = main(words)
                known[tuple(words)] = CommandOutput(status, out.getvalue(), err.getvalue())
        return known[tuple(words)]

    return said


@pytest.fixture
def asked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the launcher asks of a recipe is asked in this process."""
    monkeypatch.setattr(recipe_info, "_output_of", asking_here())
    monkeypatch.setenv("COLUMNS", "100000")  # sentences are not folded
