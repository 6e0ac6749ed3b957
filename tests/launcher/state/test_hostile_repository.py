"""Tests that a snapshot of a hostile repository runs none of its settings and hooks."""

import os
import subprocess
from pathlib import Path

import pytest

from launcher.state.snapshot import take
from nemo_vfm.core.errors import UserError
from tests.launcher.state.test_snapshot import git


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A repository of one commit; whatever writes `was_run` beside it has run a program of the repository's."""
    root = tmp_path / "trap"
    (root / "xx").mkdir(parents=True)
    (root / "xx/data").write_text("inside\n")
    (root / "a.py").write_text("x = 1\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    os.utime(root / "a.py", (0, 0))  # so that git would have to look at its content
    return root


def was_run(root: Path) -> bool:
    return (root.parent / "was_run").exists()


def touching(root: Path) -> str:
    return f"touch {root.parent}/was_run"


def test_no_filter_of_the_repository_is_run(trap):
    (trap / ".gitattributes").write_text("*.py filter=evil\n")
    git(trap, "config", "filter.evil.clean", f"sh -c '{touching(trap)}; cat'")
    assert "a.py" in take(trap).files and not was_run(trap)


def test_no_hook_of_the_repository_is_run(trap):
    hook = trap / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{touching(trap)}\n")
    hook.chmod(0o755)
    take(trap)
    assert not was_run(trap)


@pytest.mark.parametrize("missing", ["HEAD^{tree}", "HEAD:xx"])
def test_nothing_is_fetched_for_a_repository_whose_objects_are_missing(trap, missing):
    settings = {"core.repositoryformatversion": "1", "extensions.partialClone": "origin",
                "protocol.ext.allow": "always", "remote.origin.promisor": "true",
                "remote.origin.url": f"ext::sh -c touch% {trap.parent}/was_run"}  # fmt: skip
    tree = subprocess.check_output(["git", "-C", trap, "rev-parse", missing], text=True).strip()
    for name, value in settings.items():
        git(trap, "config", name, value)
    (trap / ".git/objects" / tree[:2] / tree[2:]).unlink()
    assert take(trap).commit.endswith("+changes") and not was_run(trap)


def test_a_program_called_git_in_the_working_directory_is_not_run(trap, monkeypatch):
    (trap / "git").write_text(f"#!/bin/sh\n{touching(trap)}\n")
    (trap / "git").chmod(0o755)
    monkeypatch.chdir(trap)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}{os.pathsep}")
    assert "git" in take(trap).files and not was_run(trap)


def test_an_index_that_names_files_outside_is_refused(trap):
    (trap.parent / "data").write_text("outside\n")
    index = trap / ".git/index"
    index.write_bytes(index.read_bytes().replace(b"xx/data", b"../data"))
    with pytest.raises(UserError, match=r"the index of .* names '\.\./data'"):
        take(trap)


def test_a_working_tree_elsewhere_is_refused(trap):
    (trap.parent / ".git").mkdir()
    git(trap, "config", "core.worktree", str(trap.parent))
    with pytest.raises(UserError, match=r"Fix core\.worktree"):
        take(trap)


def test_what_lies_behind_a_folder_that_became_a_link_is_not_taken(trap):
    (trap / "xx/data").unlink()
    (trap / "xx").rmdir()
    (trap.parent / "elsewhere").mkdir()
    (trap.parent / "elsewhere/data").write_text("outside\n")
    (trap / "xx").symlink_to(trap.parent / "elsewhere")
    (trap / ".gitignore").write_text("xx\n")  # else the link itself is refused
    assert list(take(trap).files) == [".gitignore", "a.py"]


def test_a_fifo_in_the_place_of_a_file_is_refused_and_not_waited_for(trap):
    (trap / "a.py").unlink()
    os.mkfifo(trap / "a.py")
    with pytest.raises(UserError, match=r"a\.py cannot be copied: it is not a regular file"):
        take(trap)


def test_more_files_than_anybody_writes_are_refused(trap, monkeypatch):
    monkeypatch.setattr("launcher.state.snapshot.MAX_FILES", 1)
    with pytest.raises(UserError, match="has 2 files, and at most 1 are copied"):
        take(trap)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda root: None, False), (lambda root: (root / "new.py").write_text(""), False),
        (lambda root: (root / "a.py").write_text("x = 2\n"), True), (lambda root: (root / "a.py").unlink(), True),
        (lambda root: (root / "a.py").chmod(0o755), True),
        (lambda root: ((root / "b.py").write_text(""), git(root, "add", "b.py")), True),
    ],
)  # fmt: skip
def test_a_commit_has_changes_where_git_status_would_say_so_of_tracked_files(trap, change, differs):
    change(trap)
    assert take(trap).commit.endswith("+changes") == differs
    said = subprocess.check_output(["git", "-C", trap, "status", "--porcelain", "--untracked-files=no"])
    assert bool(said.strip()) == differs
