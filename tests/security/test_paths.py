"""Tests that paths that lead elsewhere are refused, and that nothing is written outside the run folder (attack 7)."""

import hashlib
from pathlib import Path

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


@pytest.mark.parametrize(
    "run_dir", ["out", "out/a", "a/out/b", ".git", ".git/hooks", ".GIT/x", "bare.git/x", "src/.git/x"]
)
@pytest.mark.parametrize("given", ["by the recipe", "by default"])
def test_no_run_is_kept_in_git_or_behind_a_link_of_a_strangers(tmp_path, monkeypatch, run_dir, given):
    """`out` and `runs` lead out; a bare repository is known by what it holds."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (
        inside / "a",
        inside / "src/.git",
        inside / ".git",
        inside / "bare.git/objects",
        inside / "bare.git/refs",
        outside,
    ):
        folder.mkdir(parents=True)
    (inside / "bare.git/HEAD").write_text("ref: refs/heads/main")
    monkeypatch.chdir(inside)
    for link in ("out", "a/out"):
        (inside / link).symlink_to(outside)
    (inside / "runs").symlink_to(Path(run_dir).parent if run_dir.count("/") else run_dir)
    kitchen = Kitchen(inside)
    named = f"run_dir: {run_dir}\n" if given == "by the recipe" else ""
    kitchen.write("x.yaml", f"_target_: @.Count\nduration: 1 steps\n{named}")
    before = tree_below(tmp_path)
    assert kitchen.main("run", "x.yaml") == 2
    assert tree_below(tmp_path) == before


def test_a_link_above_the_working_directory_is_the_users_own_and_so_is_one_that_he_names(tmp_path, monkeypatch):
    (tmp_path / "disk/project").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "home/project")
    Path("runs").symlink_to(tmp_path / "scratch")
    kitchen = Kitchen(Path())
    kitchen.write("x.yaml", "_target_: @.Count\nduration: 1 steps\nrun_dir: out\n")
    assert kitchen.main("run", "x.yaml") == 0 and Path("out/recipe.yaml").is_file()
    assert kitchen.main("run", "x.yaml", "run_dir=runs/x") == 0 and (tmp_path / "scratch/x/recipe.yaml").is_file()


def test_a_checkout_inside_a_bare_repository_keeps_its_runs(tmp_path, monkeypatch):
    for name in ("objects", "refs", "main/.git"):
        (tmp_path / "project.git" / name).mkdir(parents=True)
    (tmp_path / "project.git/HEAD").write_text("ref: refs/heads/main")
    monkeypatch.chdir(tmp_path / "project.git/main")
    kitchen = Kitchen(Path())
    kitchen.write("x.yaml", "_target_: @.Count\nduration: 1 steps\n")
    assert kitchen.main("run", "x.yaml") == 0
    monkeypatch.chdir(tmp_path)
    assert kitchen.main("run", "project.git/main/x.yaml", "run_dir=project.git/main/runs/y") == 0
    assert kitchen.main("run", "project.git/main/x.yaml", "run_dir=project.git/y") == 2


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


@pytest.mark.parametrize("value, words", [("~/x", "is not expanded"), ("x" * 5000, "at most 4096"), ('"a\\0"', "NUL")])
def test_a_path_that_cannot_be_meant_is_refused(kitchen, value, words):
    with pytest.raises(RecipeError, match=words):
        build(kitchen.compose(f"{WIDE}out: {value}"), TRUST)
