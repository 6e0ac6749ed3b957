"""Tests that `runs` lists every run folder, whole or broken, on one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.runtime.run_lock import lock
from nemo_vfm.runtime.run_status import read_status
from tests.support.repository import ROOT

COUNT = "_target_: @.Count\nduration: 4 steps\n"
TWO = (
    "_target_: nemo_vfm.workflow.Workflow\nsteps:\n  one: {_target_: @.Count, duration: 2 steps}\n"
    "  two: {_target_: @.Count, duration: 4 steps, die_at: 2}\n"
)


@pytest.fixture
def listed(kitchen, capsys, monkeypatch):
    """What `runs` prints, a record a run."""

    def call(*words: str, columns: int = 0) -> dict[str, dict] | str:
        capsys.readouterr()
        if columns:
            monkeypatch.setenv("COLUMNS", str(columns))
        assert kitchen.main("runs", *words, *([] if columns else ["--json"])) == 0
        shown = capsys.readouterr().out
        return shown if columns else {record["run"]: record for record in json.loads(shown)}

    return call


def test_each_end_of_a_run_has_its_state(kitchen, listed):
    kitchen.write("count.yaml", COUNT)
    kitchen.write("fail.yaml", "_target_: @.Fail\nhow: nothing\n")
    kitchen.main("run", "count.yaml", "seed=7")
    for how in ("nothing", "unexpected", "interrupt"):
        kitchen.main("run", "fail.yaml", f"how={how}", f"run_dir=runs/{how}")
    kitchen.forked("run", "count.yaml", "die_at=2", "run_dir=runs/killed")
    found = listed()
    assert {name: record["state"] for name, record in found.items()} == {
        "count": "done", "nothing": "nothing_kept", "unexpected": "failed", "interrupt": "interrupted",
        "killed": "stalled",
    }  # fmt: skip
    assert found["count"]["seed"] == 7 and found["count"]["recipe"] == "count" and found["count"]["num_bytes"] > 0
    assert found["unexpected"]["error"] == "the disk is on fire"


def test_a_run_that_is_going_on_is_running_until_its_process_is_gone(kitchen, listed):
    kitchen.write("r.yaml", COUNT)
    kitchen.forked("run", "r.yaml", "die_at=2")
    assert listed()["r"]["state"] == "stalled"
    with lock(Path("runs/r")):
        assert listed()["r"]["state"] == "running"


def test_a_workflow_shows_the_step_that_it_is_in(kitchen, listed):
    kitchen.write("w.yaml", TWO)
    kitchen.forked("run", "w.yaml")
    assert (listed()["w"]["at"], listed()["w"]["steps_done"]) == ("two", [1, 2])
    assert "stalled two 1/2" in listed(columns=100)
    kitchen.main("run", "w.yaml")
    assert (listed()["w"]["at"], listed()["w"]["steps_done"]) == (None, [2, 2])


def metrics(folder: Path, *records: dict[str, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize(
    ("name", "recipe", "known"),
    [("val/loss", COUNT, True), ("valid_loss", COUNT, True), ("held_out", COUNT, False),
     ("val_loss/term", COUNT, False), ("held_out", "loop: {checkpoint: {metric: held_out}}\n", True),
     ("held_out", "loop: {checkpoint: {metric: [1]}}\n", False),
     ("val_auc", "loop: {checkpoint: {metric: val_auc}}\n", False),
     ("held_out", "loop: {checkpoint: {metric: held_out", False)],
)  # fmt: skip
def test_a_validation_loss_is_known_by_its_names_or_as_the_recipes_metric(name, recipe, known, listed):
    metrics(Path("runs/a"), {"step": 8, "loss": 0.5, name: 0.25}, {"step": 9, "loss": 0.125})
    Path("runs/a/recipe.yaml").write_text(recipe)
    assert listed()["a"]["val_loss"] == (0.25 if known else None)


def test_step_and_losses_are_those_at_the_end_of_the_metrics(kitchen, listed):
    kitchen.write("w.yaml", TWO)
    kitchen.main("run", "w.yaml", "steps.two.die_at=0")
    metrics(Path("runs/w/two"), {"step": 8, "loss": 0.5, "val_loss": 0.25}, {"step": 9, "loss": 0.125})
    with Path("runs/w/two/metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "lo')  # half a line
    found = listed()["w"]
    assert (found["step"], found["loss"], found["val_loss"]) == (9, 0.125, 0.25)
    head, line = listed(columns=200).splitlines()[:2]
    said = {name: line[: head.index(name) + len(name)].split()[-1] for name in (" step", " loss", "val loss", "seed")}
    assert said == {" step": "9", " loss": "0.125", "val loss": "0.25", "seed": "0"}
    metrics(Path("runs/w/one"), {"step": 3, "loss": 4.0})
    for newest, step in (("one", 3), ("two", 9)):
        for name in ("one", "two"):
            time = 2_000_000_000 if name == newest else 1_000_000_000
            os.utime(f"runs/w/{name}/metrics.jsonl", (time, time))
        assert listed()["w"]["step"] == step, "of the step that wrote last"


def test_metrics_of_gigabytes_are_read_from_their_end(tmp_path):
    metrics(tmp_path, {"step": 1, "loss": 1.0})
    (tmp_path / "recipe.yaml").touch()
    os.truncate(tmp_path / "metrics.jsonl", 4 * 10**9)  # a hole
    metrics(tmp_path, {"step": 5, "loss": 0.5})
    with (tmp_path / "metrics.jsonl").open("r+b") as file:
        file.seek(4 * 10**9 - 1)
        file.write(b"\n")
    assert (read_status(tmp_path).step, read_status(tmp_path).loss) == (5, 0.5)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "\0", "[" * 99_999, '{"state": 7}', '{"state": "done", "started": [], "error": {}}']
)
@pytest.mark.parametrize("name", ["status.json", "manifest.json", "metrics.jsonl", "recipe.yaml", "two/done.json"])
def test_whatever_is_broken_there_is_a_line_for_it(tmp_path, name, text):
    (tmp_path / "two").mkdir()
    for file in ("status.json", "manifest.json", "recipe.yaml"):
        (tmp_path / file).write_text("{}")
    (tmp_path / name).write_text(text)
    assert read_status(tmp_path).state in ("damaged", "done")


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_no_calendar_here_has_is_not_shown(kitchen, listed, time):
    (kitchen.folder / "odd").mkdir()
    for file in ("recipe.yaml", "manifest.json"):
        (kitchen.folder / "odd" / file).write_text("{}")
    (kitchen.folder / "odd" / "status.json").write_text(json.dumps({"state": "done", "heartbeat": time}))
    assert [run["last"] for run in listed(".").values()] == [None]


def test_foreign_and_damaged_folders_are_listed_as_such_and_files_are_not(kitchen, listed):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    shutil.copytree("runs/r", "runs/broken")
    Path("runs/broken/status.json").write_text("{")
    Path("runs/photos/2026").mkdir(parents=True)
    Path("runs/notes.txt").touch()
    Path("runs/circle").symlink_to(Path("runs").resolve())
    found = listed()
    assert {name: record["state"] for name, record in found.items() if "circle" not in name} == {
        "r": "done", "broken": "damaged", "photos": "not a run",
    }  # fmt: skip
    assert found["broken"]["notes"][0].startswith("status.json cannot be read")


def test_runs_that_lie_deeper_are_found_and_the_latest_stands_first(kitchen, listed):
    kitchen.write("r.yaml", COUNT)
    for name, beat in (("sweep/lr=1", "2026-01-01T00:00:00+00:00"), ("sweep/lr=2", "2026-03-01T00:00:00+00:00"),
                       ("one", "2026-02-01T00:00:00+00:00")):  # fmt: skip
        kitchen.main("run", "r.yaml", f"run_dir=runs/{name}")
        status = json.loads(Path(f"runs/{name}/status.json").read_text())
        Path(f"runs/{name}/status.json").write_text(json.dumps(status | {"heartbeat": beat}))
    assert list(listed()) == ["sweep/lr=2", "one", "sweep/lr=1"]
    assert list(listed("runs/one", "runs/sweep")) == ["runs/sweep/lr=2", "runs/one", "runs/sweep/lr=1"]


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_the_table_is_no_wider_than_the_terminal(kitchen, listed, columns):
    kitchen.write("r.yaml", COUNT)
    name = "runs/" + "a_rather_long_name_of_a_run" * 3
    kitchen.main("run", "r.yaml", f"run_dir={name}")
    metrics(next(Path("runs").iterdir()), {"step": 123_456, "loss": 0.123456, "val_loss": 0.2})
    shown = listed(columns=columns)
    assert max(len(line) for line in shown.splitlines() if line != name.removeprefix("runs/")) <= columns
    assert name.removeprefix("runs/") in shown, "a name is copied, so it is never cut"
    head = shown.splitlines()[0].split()
    assert head[:4] == ["run", "state", "step", "loss"] and ("recipe" in head) == (columns > 100)


def test_what_a_file_says_cannot_move_the_cursor(kitchen, listed):
    kitchen.write("r.yaml", "_target_: @.Fail\nhow: unexpected\n")
    kitchen.main("run", "r.yaml")
    status = json.loads(Path("runs/r/status.json").read_text())
    Path("runs/r/status.json").write_text(json.dumps(status | {"error": "red \x1b[31m\n\nline", "state": "failed"}))
    assert "\x1b" not in listed(columns=100) and "\n    red ?[31m line\n" in listed(columns=100)


def test_where_there_is_nothing_it_says_so(kitchen, capsys):
    assert kitchen.main("runs") == 2
    assert "there is no folder runs" in capsys.readouterr().err
    Path("runs").mkdir()
    assert kitchen.main("runs") == 0
    assert capsys.readouterr().out == "no runs in runs\n"


def test_it_imports_neither_torch_nor_yaml(tmp_path):
    code = (
        "import sys; from nemo_vfm.cli.main import main; main(['runs', '.']); "
        "sys.exit(bool({'torch', 'yaml', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0


def test_what_a_launcher_keeps_in_a_run_folder_is_neither_a_run_nor_in_the_way_of_one(kitchen, listed):
    kitchen.write("count.yaml", COUNT)
    launch = kitchen.folder / "runs/count/launch"
    (launch / "code").mkdir(parents=True)
    for name, text in (("launch.json", "{}"), ("recipe.yaml", COUNT), ("code/recipe.yaml", COUNT)):
        (launch / name).write_text(text)
    assert {name: record["state"] for name, record in listed().items()} == {"count": "submitted"}
    assert kitchen.main("run", "count.yaml") == 0
    assert {name: record["state"] for name, record in listed().items()} == {"count": "done"}
    assert (launch / "recipe.yaml").read_text() == COUNT
    assert "launch" not in [step.name for step in RunFolder.open(launch.parent).steps]
