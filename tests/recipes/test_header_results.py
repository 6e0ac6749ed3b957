# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that a recipe run whole, as a reader of its header would, gives the result and takes the time it promises."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_vfm.config import compose
from nemo_vfm.config.recipe_header import header
from nemo_vfm.data.shards.shard_files import ShardWriter
from tests.support.recipe_results import (
    FIGURES,
    UNMEASURED,
    files,
    missing_files,
    require_figures,
    require_time,
    said_s,
    unread_numbers,
)
from tests.support.repository import ROOT, where, yaml_files

RECIPES = [where(path) for path in yaml_files("recipes")]


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_that_takes_nothing_of_the_users_is_among_those_that_are_compared(recipe):
    assert (recipe in FIGURES) == ("???" not in compose(ROOT / recipe).to_yaml())


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_expected_result_is_compared_with_a_run_or_says_that_there_is_none_yet(recipe):
    expected = header(ROOT / recipe).expected
    if UNMEASURED not in expected:
        assert not unread_numbers(recipe), f"{recipe}: no Figure reads {unread_numbers(recipe)} in '{expected}'"
        assert recipe in FIGURES or files(recipe), f"{recipe} names neither a file nor '{UNMEASURED}': {expected}"


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_time_of_a_whole_run_is_that_of_a_recipe_which_is_run_whole(recipe):
    assert (said_s(recipe) is not None) == (recipe in FIGURES), header(ROOT / recipe).time


def test_what_a_run_has_not_left_is_missed_and_members_of_tars_count(tmp_path: Path):
    recipe = "recipes/curation/embed_text.yaml"
    (tmp_path / "shards").mkdir()
    (tmp_path / "not_embed_text.json").touch()
    assert missing_files(recipe, tmp_path) == ["text.safetensors", "embed_text.json"]
    with ShardWriter(tmp_path / "shards") as writer:
        writer.write("0" * 32, {"text.safetensors": b"x"}, {"caption": "a"})
    (tmp_path / "embed_text.json").touch()
    assert missing_files(recipe, tmp_path) == []


@pytest.mark.soak
@pytest.mark.parametrize("recipe", sorted(FIGURES))
def test_a_recipe_run_whole_gives_what_its_header_says(recipe, tmp_path: Path):
    before = children_cpu_s()
    command = [sys.executable, "-m", "nemo_vfm", "run", recipe, f"run_dir={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    require_figures(recipe, tmp_path)
    assert not missing_files(recipe, tmp_path)
    require_time(recipe, children_cpu_s() - before)
