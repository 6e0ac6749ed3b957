"""Tests how runs start, end, resume and are refused."""

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.cli.verbs import run
from nemo_vfm.config.difference import accept, differences, is_harmless
from nemo_vfm.core.errors import RunFolderError
from nemo_vfm.runtime import run_folder
from nemo_vfm.runtime.run_folder import manifest
from tests.support.run_options import every_option

COUNT = "_target_: @.Count\nduration: 4 steps\nrun_dir: out\n"


def contents(folder):
    """Every file but those that say when."""
    files = (path for path in Path(folder).rglob("*") if path.is_file() and path.name not in ("status.json", ".lock"))
    return {str(path): path.read_bytes() for path in files}


def status(folder="out"):
    return json.loads((Path(folder) / "status.json").read_text())


def test_a_run_leaves_recipe_manifest_status_and_report(kitchen, capsys):
    kitchen.write("r.yaml", COUNT + "weight: 2.0\n")
    assert kitchen.main("run", "r.yaml", "seed=7") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("counted to 4 steps") and lines[-1] == "out/report.html"
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert manifest["seed"] == 7 and len(manifest["recipe_sha256"]) == 64
    assert manifest["versions"]["torch"] and manifest["hardware"]["cpus"] == os.cpu_count()
    assert "weight: 2.0" in Path("out/recipe.yaml").read_text()
    assert status()["state"] == "done" and status()["figures"] == {"steps": 4.0} and status()["pid"] == os.getpid()
    assert json.loads(Path("out/calls.json").read_text()) == [{"from": 0, "resume": False, "seed": 7}]


def test_a_second_run_does_nothing_and_says_so(kitchen, capsys):
    kitchen.write("r.yaml", COUNT)
    assert kitchen.main("run", "r.yaml") == 0
    Path("out/report.html").write_text("a page that nobody writes again")
    before, told = contents("out"), status()
    capsys.readouterr()
    assert kitchen.main("run", "r.yaml") == 0
    assert status() == told, "when it ran and how long it took"
    shown = capsys.readouterr().out
    assert shown.startswith("Nothing to do; this run is already finished: counted to 4 steps")
    assert shown.splitlines()[-1] == "out/report.html"
    assert contents("out") == before


def test_a_run_folder_in_the_place_of_a_recipe_is_told_its_recipe(kitchen, capsys):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    assert kitchen.main("run", "out") == 2
    assert "out is a run folder; its recipe is out/recipe.yaml" in capsys.readouterr().err


def test_what_is_left_out_is_named_alone(capsys):
    with pytest.raises(SystemExit):
        main(["run"])
    assert "required: RECIPE\n" in capsys.readouterr().err


def test_the_kept_recipe_runs_in_the_same_folder(kitchen, capsys):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    capsys.readouterr()
    assert kitchen.main("run", "out/recipe.yaml") == 0
    assert "Nothing to do" in capsys.readouterr().out


def test_a_killed_run_goes_on(kitchen):
    kitchen.write("r.yaml", COUNT + "die_at: 2\n")
    assert kitchen.forked("run", "r.yaml") == -9
    assert status()["state"] == "running" and not Path("out/done.json").exists()
    assert kitchen.main("run", "r.yaml") == 0
    assert json.loads(Path("out/calls.json").read_text()) == [{"from": 2, "resume": True, "seed": 0}]
    assert sorted(p.name for p in Path("out/steps").iterdir()) == ["000", "001", "002", "003"]


def test_an_empty_folder_is_a_fresh_run(kitchen):
    kitchen.write("r.yaml", COUNT)
    Path("out").mkdir()
    assert kitchen.main("run", "r.yaml") == 0
    assert json.loads(Path("out/calls.json").read_text())[0]["resume"] is False


def test_a_corrected_recipe_takes_the_folder_of_a_run_that_failed_before_it_made_anything(kitchen, capsys):
    kitchen.write("r.yaml", COUNT + "source: absent\n")
    assert kitchen.main("run", "r.yaml") != 0 and status()["state"] == "failed"
    Path("there").mkdir()
    assert kitchen.main("run", "r.yaml", "source=there") == 0 and "made nothing" in capsys.readouterr().err
    calls = json.loads(Path("out/calls.json").read_text())
    assert [call["resume"] for call in calls] == [False] and "source: there" in Path("out/recipe.yaml").read_text()
    assert "changed" not in json.loads(Path("out/manifest.json").read_text())
    # It has results now, so another recipe is refused, even if its last try failed.
    Path("out/status.json").write_text('{"state": "failed"}')
    assert kitchen.main("run", "r.yaml", "source=there", "weight=2.0") == 2 and Path("out/calls.json").is_file()


def test_another_recipe_is_refused_with_the_difference(kitchen, capsys):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    before = contents("out")
    assert kitchen.main("run", "r.yaml", "weight=3.0", "seed=1") == 2
    said = capsys.readouterr().err
    assert "  weight: nothing there, 3.0 now" in said and "  seed: 0 there, 1 now" in said and "--allow " in said
    assert contents("out") == before
    assert kitchen.main("run", "r.yaml", "weight=3.0", "--allow", "weight") == 0
    assert "weight: 3.0" in Path("out/recipe.yaml").read_text()
    (change,) = json.loads(Path("out/manifest.json").read_text())["changed"]
    assert change["keys"] == {"weight": {"from": "nothing", "to": "3.0"}} and change["allowed"] == ["weight"]


def test_allowing_what_does_not_differ_is_said(kitchen, capfd):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    assert kitchen.main("run", "r.yaml", "duration=6 steps", "--allow", "wieght") == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "--allow wieght: nothing differs there from the run in out; what differs is duration" in said


@pytest.mark.parametrize("text", ["{", "[1]", '{"changed": 7}', "\0"])
def test_a_damaged_manifest_of_a_run_is_written_anew(kitchen, text):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    Path("out/manifest.json").write_text(text)
    assert kitchen.main("run", "r.yaml", "duration=5 steps") == 0
    assert len(json.loads(Path("out/manifest.json").read_text())["changed"]) == 1


@pytest.mark.parametrize(("schema", "code"), [("nemo_vfm.run/2", 2), ("nemo_vfm.run/2.1", 2), ("nemo_vfm.run/1.9", 0)])
def test_a_run_folder_of_another_major_version_is_refused_and_stays(kitchen, capsys, schema, code):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    file = Path("out/manifest.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": schema}))
    before = contents("out")
    assert kitchen.main("run", "r.yaml") == code
    assert contents("out") == before
    assert ("out was written as version 2 of our run folders" in capsys.readouterr().err) == bool(code)


def test_a_damaged_recipe_of_a_run_is_refused_and_stays(kitchen, capsys):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    Path("out/recipe.yaml").write_text("duration: [")
    assert kitchen.main("run", "r.yaml") == 2
    assert "out/recipe.yaml" in capsys.readouterr().err and Path("out/recipe.yaml").read_text() == "duration: ["


def test_what_a_start_that_was_killed_left_is_no_foreign_file(kitchen):
    kitchen.write("r.yaml", COUNT)
    Path("out").mkdir()
    for name in (".manifest.4711.tmp.json", ".recipe.4711.tmp.yaml", "manifest.json", ".lock"):
        (Path("out") / name).touch()
    assert kitchen.main("run", "r.yaml") == 0


def test_a_longer_duration_goes_on_and_is_said(kitchen, capsys):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    assert kitchen.main("run", "r.yaml", "duration=6 steps") == 0
    said = capsys.readouterr()
    assert "counted to 6 steps" in said.out
    assert [call["from"] for call in json.loads(Path("out/calls.json").read_text())] == [0, 4]
    (change,) = json.loads(Path("out/manifest.json").read_text())["changed"]
    assert change["keys"] == {"duration": {"from": "4 steps", "to": "6 steps"}} and change["allowed"] == []


def test_every_option_of_a_run_reaches_its_ranks(kitchen, monkeypatch):
    """But restarts, which are for whoever starts them; a part is one process."""
    kitchen.write("r.yaml", COUNT)
    parser, options, given = every_option(kitchen)
    arguments, started = parser.parse_args(["r.yaml", "weight=2.0", "--only=two", *given]), []

    def noted(composed, words, options, show):
        return SimpleNamespace(run=lambda: started.append([*words, *options.words()]) or 0)

    monkeypatch.setattr(run, "RecipeRun", noted)
    run.run(arguments)
    again, meant = vars(parser.parse_args(started[0])), vars(arguments)
    assert {name for name in meant if again[name] != meant[name]} == {"max_restarts"}
    assert all(meant[one.dest] != one.default for one in options)


def test_every_change_stays_on_record_beside_when_the_run_began(kitchen):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    file = Path("out/manifest.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"created": "long ago"}))
    for words in (["duration=5 steps"], ["duration=5 steps", "weight=3.0"]):
        assert kitchen.main("run", "r.yaml", *words, "--allow", "weight") == 0
    found = json.loads(file.read_text())
    assert [[*change["keys"]] for change in found["changed"]] == [["duration"], ["weight"]]
    assert [change["allowed"] for change in found["changed"]] == [[], ["weight"]]
    assert found["created"] == "long ago"


def test_a_heartbeat_moves_and_the_time_of_the_start_does_not(tmp_path, monkeypatch):
    times = iter("abcdef")
    monkeypatch.setattr(run_folder, "now", lambda: next(times))
    kept = run_folder.Status(tmp_path, _started="start")
    for state, more in (("running", {}), ("running", {}), ("failed", {"error": "why"})):
        kept.write(state, **more)
        found = json.loads((tmp_path / "status.json").read_text())
        assert (found["state"], found["started"], found.get("error")) == (state, "start", more.get("error"))
        assert kept.read_finished() is None
    assert found["heartbeat"] == "c"
    kept.write("done", summary="well", figures={"loss": 1.0})
    assert kept.read_finished()["figures"] == {"loss": 1.0} and "error" not in kept.read_finished()


def test_another_cadence_of_logging_leaves_a_finished_run_finished(kitchen, capsys):
    kitchen.write("r.yaml", COUNT)
    kitchen.main("run", "r.yaml")
    assert kitchen.main("run", "r.yaml", "log_every=9") == 0
    assert "Nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    "key",
    [
        "duration",
        "train.num_workers",
        "train.loop.checkpoint.every_steps",
        "train.checkpoint.keep_last",
        "checkpoint_every",
        "loggers.board.name",
        "steps.train.loop.duration",
        "steps.all.steps.train.loop.duration",
        "steps.train.checkpoint.keep_best",
        "loop.checkpoint.metric",
        "checkpoint.copy_to",
        "a.log_every_s",
    ],
)
def test_what_does_not_change_the_result_is_harmless(key):
    assert is_harmless(key)


@pytest.mark.parametrize(
    "key",
    [
        "seed",
        "lr",
        "durations",
        "num_workers_x",
        "every",
        "model.width",
        "stages.motion.every",
        "clips.duration",
        "steps.duration",
        "steps.cut.window.duration",
        "guidance.mode",
        "metric",
    ],
)
def test_what_changes_the_result_is_not(key):
    assert not is_harmless(key)


def test_a_key_is_named_by_its_address():
    there, now = {"a": {"b": 1, "c": [1]}, "run_dir": "x"}, {"a": {"b": 2, "c": [1], "d": {}}, "run_dir": "y"}
    assert differences(there, now) == {"a.b": ("1", "2"), "a.d": ("nothing", "{}")}


@pytest.mark.parametrize(
    ("there", "now", "shown"),
    [
        ({"a": 1}, {}, {"a": ("1", "nothing")}),
        ({}, {"a": None}, {"a": ("nothing", "null")}),
        ({"a": None}, {"a": "None"}, {"a": ("null", "None")}),
        ({"a": 1}, {"a": "1"}, {"a": ("1", '"1"')}),
        ({"a": 1}, {"a": True}, {"a": ("1", "true")}),
        ({"a": [1, {"b": 0}]}, {"a": [1, {"b": False}]}, {"a": ("[1, {'b': 0}]", "[1, {'b': False}]")}),
        ({"a": 1}, {"a": 1.0}, {}),
        ({"a": "nothing"}, {}, {"a": ('"nothing"', "nothing")}),
        ({"a": {"b.c": 1}}, {"a": {"b": {"c": 1}}}, {'a."b.c"': ("1", "nothing"), "a.b.c": ("nothing", "1")}),
        ({"a": {"b": 1}}, {"a": {}}, {"a.b": ("1", "nothing"), "a": ("nothing", "{}")}),
        ({"a": {"b": 1}}, {"a": [1]}, {"a.b": ("1", "nothing"), "a": ("nothing", "[1]")}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": ("[1, 2]", "[1]")}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}, {"a": ("[{'b': 1}]", "[{'b': 1, 'c': 2}]")}),
    ],
)
def test_a_difference_shows_what_differs(there, now, shown):
    assert differences(there, now) == shown


def test_the_run_of_another_job_is_named_and_its_differences_are_not_listed():
    found = {"_target_": ("a.Job", "b.Job"), "width": ("1", "nothing")}
    with pytest.raises(RunFolderError, match=r"of another recipe \(a.Job, and this one is b.Job\); choose") as refused:
        accept(found, [], "runs/x")
    assert "width" not in str(refused.value)


def test_of_many_differences_a_dozen_are_shown():
    found = {f"key{number}": ("1", "2") for number in range(40)}
    with pytest.raises(RunFolderError, match=r"key11: 1 there, 2 now\n  \.\.\. and 28 more\nChoose"):
        accept(found, [], "runs/x")


def test_a_key_may_be_allowed_by_what_it_lies_below_and_only_at_a_dot():
    found = {"model.width": ("1", "2"), "models": ("a", "b")}
    with pytest.raises(RunFolderError, match=r"models: a there, b now\nChoose .*--allow models$") as refused:
        accept(found, ["model"], "out")
    assert "width" not in str(refused.value)
    accept(found, ["model", "models"], "out")


@pytest.mark.parametrize(
    ("how", "code", "state", "said"),
    [
        ("unexpected", 1, "failed", "RuntimeError: the disk is on fire\nThe traceback is in out/traceback.txt"),
        ("nothing", 3, "nothing_kept", "no clip was kept: 3 were too_short"),
        ("interrupt", 130, "interrupted", "run the same command again to resume in out"),
        (
            "full",
            2,
            "failed",
            "there is no space left on the disk of out; free some space and run the same command again",
        ),
        ("user", 1, "failed", "a plain ValueError while running is a surprise"),
    ],
)
def test_a_bad_end_has_its_status_and_its_sentence(kitchen, capsys, how, code, state, said):
    kitchen.write("r.yaml", f"_target_: @.Fail\nhow: {how}\nrun_dir: out\n")
    assert kitchen.main("run", "r.yaml") == code
    shown = capsys.readouterr()
    assert said in shown.err and "Traceback" not in shown.err + shown.out
    assert status()["state"] == state and not Path("out/done.json").exists()
    assert ("Traceback" in Path("out/traceback.txt").read_text()) if code in (1, 3) else True
    assert kitchen.main("run", "r.yaml") == code, "a failed run is tried again"


def test_a_traceback_is_of_the_last_try_alone(kitchen):
    kitchen.write("r.yaml", "_target_: @.Count\nduration: 1 steps\nsource: later\nrun_dir: out\n")
    assert kitchen.main("run", "r.yaml") == 1 and "later" in Path("out/traceback.txt").read_text()
    Path("later").mkdir()
    assert kitchen.main("run", "r.yaml") == 0
    assert not Path("out/traceback.txt").exists()


def test_a_manifest_tells_a_commit_with_changes_from_the_commit(tmp_path, monkeypatch):
    root = tmp_path / "checkout"
    (root / "a/b").mkdir(parents=True)
    monkeypatch.setattr("nemo_vfm.runtime.run_folder.__file__", str(root / "a/b/file.py"))
    assert manifest("", 0)["commit"] is None
    (root / "code.py").write_text("1")
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", "-C", root, *words], check=True)
    commit = manifest("", 0)["commit"]
    assert len(commit) == 40
    (root / "code.py").write_text("2")
    assert manifest("", 0)["commit"] == f"{commit}+changes"


@pytest.mark.parametrize(
    "text", ["_target_: @.Count\n", "_target_: @.Count\nduration: ???\n", "a: [", "_target_: os.system\n"]
)
def test_a_bad_recipe_is_refused_before_a_folder_is_made(kitchen, text):
    kitchen.write("r.yaml", text)
    assert kitchen.main("run", "r.yaml") == 2
    assert sorted(p.name for p in kitchen.folder.iterdir()) == ["r.yaml"]


def test_a_folder_that_cannot_be_made_is_said(kitchen, capsys):
    kitchen.write("r.yaml", COUNT)
    kitchen.write("out", "a file")
    assert kitchen.main("run", "r.yaml") == 2
    assert "cannot make the folder out" in capsys.readouterr().err


def test_the_heartbeat_beats(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "HEARTBEAT_S", 0.02)
    beats = []
    state = run_folder.Status(tmp_path)
    monkeypatch.setattr(state, "write", lambda text: beats.append(text))
    with state.heartbeat():
        time.sleep(0.2)
    assert len(beats) > 2


@pytest.mark.parametrize(("where", "locks"), [("s3://bucket/x", True), ("https://host/x", False)])
def test_the_hint_about_locks_stands_behind_addresses_of_stores_alone(tmp_path, monkeypatch, capsys, where, locks):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "synthetic/shapes", "--overlay", "smoke", f"run_dir={where}"]) == 2
    assert ("file system with locks" in capsys.readouterr().err) == locks
