"""Tests that every verb ends well where a run folder's file is no file, or controls the terminal."""

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nemo_vfm.core.secret import concealing_streams

RUN = "_target_: nemo_vfm.workflow.Workflow\nsteps:\n  one: {_target_: '@.Count', duration: 2 steps}\n"
NAMES = ("status.json", "manifest.json", "recipe.yaml", ".lock", "report.html", "metrics.jsonl", "one/metrics.jsonl",
         "one/done.json", "one/started.json", "one/ledger.json", "one/scores.parquet", "sweep.json",
         "launch/launch.json", "one/samples.json", "one/throughput.json", "one/rules.json")  # fmt: skip
KINDS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "environment": lambda path: path.symlink_to("/proc/self/environ"),
    "circle": lambda path: path.symlink_to(path.name),
    "empty": Path.touch,
    "sparse": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "deep": lambda path: path.write_text("[" * 100_000),
    "deep mapping": lambda path: path.write_text('{"a":' * 100_000),
    "list": lambda path: path.write_text("[1, 2]"),
    "numbers": lambda path: path.write_text(json.dumps(dict.fromkeys(FIELDS, 10**400))),
    "infinite": lambda path: path.write_text("{" + ", ".join(f'"{name}": 1e999' for name in FIELDS) + "}"),
    "not a number": lambda path: path.write_text("{" + ", ".join(f'"{name}": NaN' for name in FIELDS) + "}"),
    "nested": lambda path: path.write_text(json.dumps({name: {name: [None]} for name in FIELDS})),
    "bytes": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "escapes": lambda path: path.write_text(json.dumps(dict.fromkeys(FIELDS, STEERING))),
}
FIELDS = (
    "state", "error", "recipe", "seed", "started", "heartbeat", "created", "step", "loss", "val_loss", "pid", "host",
    "before", "own", "summary", "figures", "seconds", "points", "axes", "schema", "hardware", "commit", "purpose",
)  # fmt: skip
STEERING = ("\x1b]8;;http://x.org\x07here\x1b]8;;\x07\x1b[2J\x9b31m\u202eevil\u2066\r\nrun  done\n"
            "[link=http://x.org]x[/link]\x1b]0;t\x07")  # fmt: skip
STEERS = ("\x1b", "\x9b", "\x07", "\u202e", "\u2066", "\r")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run that has ended."""
    from tests.support.recipe_folder import Kitchen

    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        kitchen = Kitchen(folder)
        kitchen.write("r.yaml", RUN)
        assert kitchen.main("run", "r.yaml") == 0
    return folder


def sets() -> Iterator[tuple[str, ...]]:
    """The recipe makes a folder a run, so it is left whole once; every file by itself takes a minute."""
    yield tuple(name for name in NAMES if name not in ("recipe.yaml", ".lock"))
    yield from (("recipe.yaml",), (".lock",))


def words_for(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """What reads them. Of a lock that nobody can be seen to hold `run` waits whether its owner is alive."""
    yield from (("runs",), ("runs", "--json"), ("report", "runs/r"), ("explain", "runs/r/one@1"))
    yield from (("explain", "runs/r", "abcdef"), *([] if names == (".lock",) else [("run", "r.yaml")]))


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_stands_for_a_file_of_a_run_each_verb_ends_in_a_sentence(kitchen, capsys, finished, kind):
    for names in sets():
        shutil.rmtree(kitchen.folder / "runs", ignore_errors=True)
        shutil.copytree(finished, kitchen.folder, dirs_exist_ok=True)
        for path in (kitchen.folder / "runs/r" / name for name in names):
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            KINDS[kind](path)
        capsys.readouterr()
        for words in words_for(names):
            status = kitchen.main(*words)
            said = "".join(capsys.readouterr())
            assert "Traceback" not in said and status in (0, 1, 2), (names, words, said[-2000:])
            assert not any(sign in said for sign in STEERS) and len(said) < 20_000, (names, words, said)


def test_a_socket_among_the_files_of_a_run_is_no_file(kitchen, capsys, finished, monkeypatch):
    shutil.copytree(finished, kitchen.folder, dirs_exist_ok=True)
    monkeypatch.chdir(kitchen.folder / "runs/r")
    Path("status.json").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("status.json")
        assert kitchen.main("runs", ".") == 0
    assert "damaged" in capsys.readouterr().out


@pytest.mark.parametrize("name", [b"caf\xe9", b"a\x1b[2Jb", "\u202ex".encode(), b"a\nb", b"[link=x]y", b"x" * 255])
def test_the_name_of_a_folder_steers_nothing(kitchen, capsys, finished, name):
    shutil.copytree(finished, kitchen.folder, dirs_exist_ok=True)
    folder = kitchen.folder / "runs" / os.fsdecode(name)
    (kitchen.folder / "runs/r").rename(folder)
    recipe = kitchen.folder / "recipes" / os.fsdecode(name) / "x.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(f"# {STEERING} Time: {STEERING}\n_target_: x\n")
    for words in (("runs",), ("runs", "--json"), ("report", str(folder)), ("list",)):
        status = kitchen.main(*words)
        said = "".join(capsys.readouterr())
        assert status in (0, 2) and "Traceback" not in said, said[-2000:]
        assert not any(sign in said for sign in STEERS) and "a\nb" not in said, said


def test_runs_that_link_in_circles_are_listed_once(kitchen, capsys, finished):
    shutil.copytree(finished, kitchen.folder, dirs_exist_ok=True)
    (kitchen.folder / "runs/again").symlink_to(kitchen.folder / "runs")
    (kitchen.folder / "runs/itself").symlink_to("itself")
    assert kitchen.main("runs", "--json") == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == ["r"]


def test_standard_output_keeps_lines_and_colours_and_steers_nothing_else(capsys):
    """The last net: what a verb forgets to clean. Bytes of a name that are no text could not even be written."""
    with concealing_streams():
        sys.stdout.write(f"\x1b[1mbold\x1b[0m {STEERING}caf\udce9\ttab\n")
    said = capsys.readouterr().out
    assert said.startswith("\x1b[1mbold\x1b[0m ") and said.endswith("caf?\ttab\n")
    assert not any(sign in said.replace("\x1b[1m", "").replace("\x1b[0m", "") for sign in STEERS)
