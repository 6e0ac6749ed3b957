"""Tests a submission through a fake ssh, which runs its command in another home on this machine."""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.remote.receive import receive_tree
from launcher.remote.words import host, python, words
from launcher.verbs.submit import add_arguments
from nemo_vfm.core.errors import UserError
from tests.support.fake_queue import FakeQueue
from tests.support.repository import ROOT

#: As sshd does: the words after the host are one text, which the user's shell reads.
SSH = """\
#!/bin/bash
printf '%s\\n' "$@" > "$THERE/asked"
while [[ $1 != -- ]]; do shift; done
shift 2
cd "$THERE" && exec env -i HOME="$THERE" PATH=/usr/bin:/bin THERE="$THERE" sh -c "$*"
"""
SUBMIT = ("submit", "cluster=cpu_slurm", "--ssh", "you@login.example", "--ssh-python", sys.executable)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home on the other machine, which has a queue."""
    queue = FakeQueue(tmp_path / "slurm")
    home, local = tmp_path / "home there", tmp_path / "bin"
    for folder in (home, local):
        folder.mkdir()
    lines = [f'export PATH="{queue.bin}:$PATH"', f'export PYTHONPATH="{ROOT}"', "umask 022"]
    (home / ".bash_profile").write_text("\n".join([*lines, ""]))
    (local / "ssh").write_text(SSH)
    (local / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{local}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("THERE", str(home))
    return home


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working tree with a key, a run, what git ignores, and a folder below that one submits from."""
    root = tmp_path / "mine"
    for name, text in {"r.yaml": "_target_: own.Own\n", "own/__init__.py": OWN, "sub/.keep": "", ".gitignore": "*.mp4",
                       "film.mp4": "x", ".env": "KEY=x", "old.py": ""}.items():  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "sub/link").symlink_to("../r.yaml")
    subprocess.run(["git", "init", "-q", root], check=True)
    monkeypatch.chdir(root)
    return root


OWN = """\
from nemo_vfm.core.types.job import Outcome, Run


class Own:
    def __init__(self, *, word: str = "") -> None:
        self.word = word

    def run(self, run: Run) -> Outcome:
        return Outcome("ran")
"""
HOSTILE = "$(touch canary) `touch canary`; touch canary # ' \" \\ \n é"


def test_the_tree_goes_to_the_other_machine_and_is_submitted_there_with_the_same_words(there, tree, capfd):
    os.chdir(tree / "sub")
    word = json.dumps(HOSTILE)
    trust = ("--trust", "own", "--no-paths", f"word={word}", "cluster.cpus_per_node=2")
    assert main([SUBMIT[0], "../r.yaml", *SUBMIT[1:], *trust]) == 0
    said = capfd.readouterr()
    assert "not copied, since they hold keys: .env" in said.err and "job 101" in said.out, said.err
    copy = there / "vfm-launch/mine"
    kept = json.loads((copy / "sub/runs/r/launch/launch.json").read_text())
    assert kept["jobs"][0]["slurm"] == ["101"] and kept["words"]["trust"] == ["own"] and kept["words"]["paths"] is False
    assert word in json.loads(json.dumps(kept["words"]["changes"]))[0]
    code = copy / "sub/runs/r/launch/code"
    assert (code / "own/__init__.py").is_file() and (code / "sub/link").is_symlink()
    assert not [one for one in there.rglob("*") if one.name in (".env", "film.mp4", "canary")]
    assert not list(tree.rglob("canary")) and not (tree / "sub/runs").exists()
    assert (there / "asked").read_text().splitlines()[:3] == ["-T", "--", "you@login.example"]


def test_what_the_other_machine_says_cannot_move_the_cursor_and_its_status_is_ours(there, tree, capfd):
    (there / ".bash_profile").write_text("printf 'a\\033[2Jb\\r\\n'; printf '\\033]0;x\\007' >&2; exit 7\n")
    assert main([SUBMIT[0], "r.yaml", *SUBMIT[1:]]) == 7
    said = capfd.readouterr()
    assert said.out == "a?[2Jb\n" and "?]0;x?" in said.err and "\033" not in said.err
    (there / ".bash_profile").write_text("exit 255\n")
    assert main([SUBMIT[0], "r.yaml", *SUBMIT[1:]]) == 2
    assert "ssh you@login.example failed" in capfd.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "-oProxyCommand=touch canary",
        "you@-oProxyCommand=x",
        "-v",
        "you@-v",
        "a b",
        "a;b",
        "$(id)",
        "",
        "a\nb",
        "a@b@c",
        "--",
    ],
)
def test_no_host_is_read_as_an_option_or_by_a_shell(there, tree, name, capfd):
    assert main(["submit", "r.yaml", "cluster=local", f"--ssh={name}"]) == 2
    assert "name of a host" in capfd.readouterr().err and not (there / "asked").exists()


def test_no_python_is_read_by_a_shell_and_options_without_a_host_are_refused(there, tree, capfd, monkeypatch):
    for wrong in ("python; touch canary", "$(id)", "-c", "a'b"):
        assert main(["submit", "r.yaml", "cluster=local", "--ssh", "host", f"--ssh-python={wrong}"]) == 2
    assert main(["submit", "r.yaml", "cluster=local", "--ssh-folder", "x"]) == 2
    assert "are for --ssh HOST" in capfd.readouterr().err and not (there / "asked").exists()
    monkeypatch.setenv("NEMO_VFM_SSH_PYTHON", "~/venv/bin/python")
    assert python(argparse.Namespace(ssh_python=None)) == "~/venv/bin/python"
    assert host(argparse.Namespace(ssh="you@a-b.c", ssh_folder=None, ssh_python=None)) == "you@a-b.c"


def test_every_option_of_submit_goes_along():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = ["r", "a=1", "~b", "--conf=c", "--overlay=o", "--trust=t", "--allow=k", "--allow-host=h", "--parts=3",
             "--sweep", "x=1,2", "y=3", "--rank-silence=9", "--rank-timeout=8", "--no-code", "--no-paths",
             "--profile=nsys", "--profile-ranks=0,1", "--profile-seconds=1-2", "--dry-run",
             "--print-script"]  # fmt: skip
    asked = parser.parse_intermixed_args([*given, "--ssh-folder=f"])
    usual = vars(parser.parse_intermixed_args(["r"]))
    assert {name for name, value in vars(asked).items() if value == usual[name]} == {"recipe", "ssh", "ssh_python"}
    again = parser.parse_intermixed_args(words(asked))
    assert {**vars(again), "ssh_folder": "f"} == vars(asked)


def sent(folder: str, *names: str, below: str = ".") -> io.BytesIO:
    """What --ssh sends, with files of these names."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return io.BytesIO(
        json.dumps({"words": ["r"], "folder": folder, "below": below}).encode() + b"\n" + packed.getvalue()
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # it is left for the folder that came
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_second_submission_replaces_what_the_first_has_sent_and_nothing_else(home):
    assert receive_tree(sent("w", "a", "b/c")) == ["r"]
    (home / "w/runs/r").mkdir(parents=True)
    (home / "elsewhere").write_text("kept")
    (home / "w/b/c").unlink()
    (home / "w/b/c").symlink_to(home / "elsewhere")
    receive_tree(sent("w", "b/c", "d"))
    assert sorted(path.name for path in (home / "w").iterdir()) == [".git", "b", "d", "runs"]
    assert (home / "elsewhere").read_text() == "kept" and not (home / "w/b/c").is_symlink()
    listed = subprocess.run(["git", "-C", home / "w", "ls-files"], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == ["b/c", "d"]


def test_a_folder_that_holds_something_else_is_not_touched(home):
    (home / "w/.git").mkdir(parents=True)
    with pytest.raises(UserError, match="--ssh-folder"):
        receive_tree(sent("w", "a"))
    assert not (home / "w/a").exists()


@pytest.mark.parametrize("name", ["../a", "/etc/a", "b/../../a", ".git/config"])
def test_nothing_is_written_outside_of_the_folder(home, name):
    with pytest.raises(UserError, match="leads out"):
        receive_tree(sent("w", name))
    with pytest.raises(UserError, match="leads out"):
        receive_tree(sent("w", "a", below=name))
    assert not list(home.rglob("etc")) and not (home / "a").exists()
