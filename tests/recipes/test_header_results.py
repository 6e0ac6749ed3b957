"""Tests that a recipe run whole, as a reader of its header would, gives the result and takes the time it promises."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_vfm.data.shards.shard_files import ShardWriter
from tests.support.recipe_results import FIGURES, missing_files, require_figures, require_time
from tests.support.repository import ROOT


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
    two_cores = {**os.environ, "OMP_NUM_THREADS": "2"}  # as headers have; more threads would spend more CPU seconds
    done = subprocess.run(command, cwd=ROOT, env=two_cores, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    require_figures(recipe, tmp_path)
    assert not missing_files(recipe, tmp_path)
    require_time(recipe, children_cpu_s() - before)
