# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Paths that lead elsewhere in, refusals out, and not a byte outside the run folder. Attack 7."""

import hashlib

import pytest

from nemo_vfm.config import RecipeError, build, compose
from tests.support.recipe_folder import TRUST, WIDE, Kitchen


def tree_below(folder):
    """Every file with a hash of its bytes, links as links."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


RUN_DIRS = [
    "../out",
    "a/../../out",
    "<outside>/out",
    "~/out",
    "~root/out",
    "~nobody-of-that-name/out",
    "/etc/nemo_vfm_out",
    "x" * 5000,
    "x/" * 2000 + "y",
    '"a\\0b"',
    "${env:PARTS_OUT}",
    "link/../../out",
    "//out",
    "a/b\\n/../../../out",
]


@pytest.mark.parametrize("run_dir", RUN_DIRS, ids=[text[:30] for text in RUN_DIRS])
def test_a_recipe_cannot_lead_its_run_out_of_the_working_directory(tmp_path, monkeypatch, run_dir):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir(), outside.mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.setenv("PARTS_OUT", str(outside / "out"))
    monkeypatch.setenv("HOME", str(outside))
    before = tree_below(outside)
    kitchen = Kitchen(inside)
    kitchen.write(
        "r.yaml", f"_target_: @.Count\nduration: 1 steps\nrun_dir: {run_dir.replace('<outside>', str(outside))}\n"
    )
    assert kitchen.main("run", "r.yaml") == 2
    assert tree_below(outside) == before and set(tree_below(tmp_path)) == {"inside", "inside/r.yaml", "outside"}


def test_the_user_may_lead_it_anywhere(kitchen, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "out"
    kitchen.write("r.yaml", "_target_: @.Count\nduration: 1 steps\n")
    assert kitchen.main("run", "r.yaml", f"run_dir={elsewhere}") == 0 and (elsewhere / "recipe.yaml").is_file()
    assert compose(elsewhere / "recipe.yaml").run_dir == elsewhere, "what a run folder holds may be run again"


def test_a_folder_that_is_a_link_writes_where_the_user_pointed_it_and_nowhere_else(kitchen, tmp_path_factory):
    target = tmp_path_factory.mktemp("around") / "target"  # beside it lie the folders of all other tests
    target.mkdir()
    (kitchen.folder / "out").symlink_to(target)
    kitchen.write("r.yaml", "_target_: @.Count\nduration: 1 steps\nrun_dir: out\n")
    before = tree_below(target.parent)
    status = kitchen.main("run", "r.yaml")
    changed = set(tree_below(target.parent)) - set(before)
    assert status in (0, 2) and all(path.startswith(target.name) for path in changed)


@pytest.mark.parametrize(
    "name", ["..", "../x", "/x", "~", "~/x", "a/b", ".", "", "x" * 5000, '"a\\0b"', "a b", "-x", "_replaced"]
)
def test_a_step_has_a_folder_of_its_own_below_the_run_or_none(kitchen, name):
    key = name if name.startswith('"') else f"'{name}'"
    kitchen.write(
        "r.yaml",
        "_target_: nemo_vfm.workflow.Workflow\nrun_dir: out\n"
        f"steps:\n  ? {key}\n  : {{_target_: '@.Count', duration: 1 steps}}\n",
    )
    kitchen.main("run", "r.yaml")
    assert {path.split("/")[0] for path in tree_below(kitchen.folder)} <= {"out", "r.yaml"}


@pytest.mark.parametrize("value, words", [("~/x", "does not know ~"), ("x" * 5000, "at most 4096"), ('"a\\0"', "NUL")])
def test_a_path_that_cannot_be_meant_is_refused(kitchen, value, words):
    with pytest.raises(RecipeError, match=words):
        build(kitchen.compose(f"{WIDE}out: {value}"), TRUST)
