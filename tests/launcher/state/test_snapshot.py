"""Tests what of small git repositories a snapshot takes."""

import os
import subprocess
from pathlib import Path

import pytest

from launcher.state import snapshot
from launcher.state.snapshot import read_listing, take
from nemo_vfm.core.errors import UserError


def git(folder: Path, *words: str) -> None:
    """Run git, knowing nobody's settings."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    names = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *names, *words], check=True, capture_output=True, env=environment)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a tracked file, a changed one, a new one and an ignored one."""
    root = tmp_path / "project"
    (root / "package").mkdir(parents=True)
    (root / "package" / "model.py").write_text("x = 1\n")
    (root / "package" / "gone.py").write_text("")
    (root / ".gitignore").write_text("secret.txt\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    (root / "package" / "model.py").write_text("x = 2\n")
    (root / "package" / "gone.py").unlink()
    (root / "new.sh").write_text("echo\n")
    (root / "new.sh").chmod(0o755)
    (root / "secret.txt").write_text("hunter2")
    return root


def test_what_is_tracked_and_what_is_new_is_taken_as_it_is_now_and_nothing_that_is_ignored(tree):
    code = take(tree / "package")
    assert list(code.files) == [".gitignore", "new.sh", "package/model.py"]
    assert code.files["package/model.py"].content == b"x = 2\n"
    assert code.commit.endswith("+changes")


def test_the_copy_has_the_same_bytes_modes_and_links(tree, tmp_path):
    (tree / "link.py").symlink_to("package/model.py")
    take(tree).write(tmp_path / "code")
    assert (tmp_path / "code" / "link.py").readlink() == Path("package/model.py")
    assert (tmp_path / "code" / "package" / "model.py").read_text() == "x = 2\n"
    assert os.access(tmp_path / "code" / "new.sh", os.X_OK)
    assert (tmp_path / "code").stat().st_mode & 0o077 == 0


def test_the_hash_follows_content_names_and_what_may_be_executed_and_not_times(tree):
    before = take(tree).hash()
    os.utime(tree / "new.sh", (0, 0))
    assert take(tree).hash() == before
    (tree / "new.sh").chmod(0o644)
    other = take(tree).hash()
    (tree / "new.sh").chmod(0o755)
    (tree / "new.sh").write_text("echo 2\n")
    assert len({before, other, take(tree).hash()}) == 3


def test_what_runs_have_written_is_left_out_where_git_does_not_ignore_it(tree):
    before = take(tree).hash()
    for run, names in {"runs/a": ["recipe.yaml", "manifest.json", "report.html"], "b": ["launch/launch.json"]}.items():
        for name in names:
            (tree / run / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / run / name).write_text("made by a run")
    assert take(tree).hash() == before
    (tree / "c").mkdir()
    (tree / "c" / "half.txt").write_text("")
    assert take(tree).hash() != before
    assert take(tree, [tree / "c"]).hash() == before


def test_a_tree_that_is_too_large_is_refused_with_its_largest_files(tree, monkeypatch):
    monkeypatch.setattr(snapshot, "MAX_BYTES", 1000)
    (tree / "weights.bin").write_bytes(bytes(2000))
    with pytest.raises(UserError, match=r"largest files are weights\.bin"):
        take(tree)


@pytest.mark.parametrize("to", ["../outside.py", "{tree}/package/model.py", "package/../../outside.py"])
def test_a_link_that_leads_out_of_the_tree_is_refused(tree, to):
    (tree.parent / "outside.py").write_text("")
    (tree / "link.py").symlink_to(to.format(tree=tree))
    with pytest.raises(UserError, match=r"link\.py is a link to .*outside the working tree"):
        take(tree)


def test_a_link_through_another_link_is_followed_before_it_is_believed(tree):
    (tree.parent / "elsewhere").mkdir()
    (tree.parent / "elsewhere" / "x.py").write_text("")
    (tree / "folder").symlink_to("../elsewhere")
    (tree / ".gitignore").write_text("folder\nsecret.txt\n")
    (tree / "link.py").symlink_to("folder/x.py")
    with pytest.raises(UserError, match="is a link to"):
        take(tree)


def test_outside_of_git_nothing_is_taken_and_this_is_said(tmp_path):
    code = take(tmp_path)
    assert not code.files and code.hash() == "" and "not in a git repository" in code.why


def test_names_that_are_no_text_or_hold_a_line_break_are_taken_and_listed_on_one_line(tree, tmp_path):
    (tree / "a\nb.py").write_text("1")
    (tree / os.fsdecode(b"\xff.py")).write_text("2")
    code = take(tree)
    assert len(code.listing().splitlines()) == len(code.files) == len(read_listing(code.listing()))
    code.write(tmp_path / "code")
    assert (tmp_path / "code" / os.fsdecode(b"\xff.py")).read_text() == "2"


def test_a_program_that_the_repository_names_in_its_settings_is_not_run(tree, tmp_path):
    (tmp_path / "spy").write_text(f"#!/bin/sh\ntouch {tmp_path}/was_run\n")
    (tmp_path / "spy").chmod(0o755)
    git(tree, "config", "core.fsmonitor", str(tmp_path / "spy"))
    take(tree)
    assert not (tmp_path / "was_run").exists()


def test_a_repository_inside_is_taken_along(tree):
    (tree / "inner").mkdir()
    (tree / "inner" / "deep.py").write_text("y = 1\n")
    git(tree / "inner", "init", "-q")
    git(tree / "inner", "add", ".")
    git(tree / "inner", "commit", "-q", "-m", "inner")
    assert "inner/deep.py" in take(tree).files


def test_variables_of_a_git_around_us_lead_to_no_other_repository(tree, tmp_path, monkeypatch):
    before = take(tree)
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert take(tree) == before
