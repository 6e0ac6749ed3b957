# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests for every recipe that sbatch gets the bytes that a dry run shows."""

import argparse
import os
from pathlib import Path

import pytest

from launcher.plan.launch import prepared
from launcher.plan.recipe_info import CommandOutput
from launcher.request.request import add_arguments, parse_request
from launcher.state.submission import checked, submit
from launcher.verbs.submit import launched
from nemo_vfm.config import Roots
from tests.support.fake_queue import FakeQueue
from tests.support.repository import ROOT

RECIPES = [name for name, file in Roots.standard().all_recipes() if file.resolve().is_relative_to(ROOT)]


def test_there_are_recipes():
    assert len(RECIPES) > 20


def words(name: str):
    """A recipe on a cluster that suits it."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse_request(parser.parse_args([name, "cluster=dgx_h100", "run_dir=runs/r"]))


#: A workflow, one that needs GPUs, a language model and a large layout; the others are tried by `make test-slow`.
QUICK = {"quickstart", "curation/full_gpu", "llm/stories", "diffusion/dit_7b_8k"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in RECIPES]
)
def test_what_a_dry_run_shows_is_what_sbatch_gets(name, tmp_path, monkeypatch, capsys, asked_here):
    queue = FakeQueue(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{queue.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    # What is said beside the scripts takes a minute for the largest, and has tests of its own.
    monkeypatch.setattr("launcher.plan.preflight.planned", lambda *_, **__: "not asked here")
    monkeypatch.setattr("launcher.plan.preflight.checked", lambda *_, **__: CommandOutput(0, "ok"))
    assert launched(prepared(words(name)), dry_run=True) == 0
    shown = capsys.readouterr().out
    launch = prepared(words(name))
    submit(launch, checked(launch)[0])
    given = [queue.submitted(101 + number).decode() for number in range(len(launch.shares))]
    if len(given) == 1:
        assert shown == given[0]
    else:
        names = [Path(call[-1]) for call in queue.asked("sbatch")]
        assert shown == "".join(f"# -------- {name}\n{text}" for name, text in zip(names, given, strict=True))
