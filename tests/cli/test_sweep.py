"""Tests that --sweep gives combinations, run folders and a table."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_vfm.cli.main import VerbParser, main
from nemo_vfm.cli.verbs import run
from nemo_vfm.config.overrides import swept_words
from nemo_vfm.core.errors import UserError
from nemo_vfm.runtime import sweep_table
from nemo_vfm.runtime.sweep_points import MAX_POINTS, axes, points, sweep_plan
from tests.support import preloaded
from tests.support.recipe_folder import PARTS, ROOT
from tests.support.run_options import every_option

COUNT = "_target_: @.Count\nduration: 1 steps\nweight: 1.0\n"


def words(*sweep: str) -> list[list[str]]:
    return [point.words() for point in points(axes(sweep))]


def names(*sweep: str) -> list[str]:
    return [point.name for point in points(axes(sweep))]


def test_every_combination_comes_once_and_the_last_axis_turns_fastest():
    assert words("a=1,2", "b=x,y") == [["a=1", "b=x"], ["a=1", "b=y"], ["a=2", "b=x"], ["a=2", "b=y"]]


@pytest.mark.parametrize(
    ("word", "choices"),
    [
        ("betas=[0.9,0.95],[0.9,0.99]", ("[0.9,0.95]", "[0.9,0.99]")),
        ("m={a: 1, b: [1,2]},{a: 2}", ("{a: 1, b: [1,2]}", "{a: 2}")),
        ("texts='a, b','c]'", ("'a, b'", "'c]'")),
        ("path=x=1,x=2", ("x=1", "x=2")),
        ("lr=1e-4, 3e-4", ("1e-4", "3e-4")),
        ("one=1", ("1",)),
        ("alike=1,true,'1',null,'range(1,3)'", ("1", "true", "'1'", "null", "'range(1,3)'")),
    ],
)
def test_commas_inside_brackets_and_quotes_do_not_separate(word, choices):
    assert axes([word])[0].choices == choices


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        (["lr"], "--sweep takes address=value,value"),
        (["=1,2"], "--sweep takes address=value,value"),
        (["run_dir=a,b"], "--sweep takes address=value,value"),
        (["~a=1"], "--sweep takes address=value,value"),
        (["lr=1,,2"], "a value is empty"),
        (["lr="], "a value is empty"),
        (["lr=1,1"], "a value is given twice"),
        (["lr=1e-3,3e-4,0.001"], "given twice, as 1e-3 and as 0.001"),
        (["n=1000,1_000.0"], "given twice"),
        (["betas=[0.9, 1],[0.90,1.0]"], "given twice"),
        (["name=a,'a'"], "given twice"),
        (["seed=range(1,4)"], r"values are written out: seed=1,2,3$"),
        (["model=choice(dit_s, dit_b)"], "values are written out: model=dit_s,dit_b$"),
        (["lr=interval(0.1,1)"], "lr=A,B,C"),
        (["model=a,glob(*)"], "model=A,B,C"),
        (["lr=range(0.1,1)"], "lr=A,B,C"),
        (["lr=1", "lr=2"], "names lr twice"),
        (
            [f"a={','.join(map(str, range(40)))}", f"b={','.join(map(str, range(40)))}"],
            f"1,600 points, but at most {MAX_POINTS:,}",
        ),
    ],
)
def test_a_sweep_that_cannot_be_meant_is_refused(sweep, said):
    with pytest.raises(UserError, match=said):
        points(axes(sweep))


def test_a_folder_is_named_by_values_with_as_much_of_the_address_as_is_needed():
    assert names("optimizer.lr=1e-4", "model=dit_s") == ["lr=1e-4,model=dit_s"]
    assert names("a.lr=1", "b.lr=2") == ["a.lr=1,b.lr=2"]


@pytest.mark.parametrize("choice", ["../../x", "/etc", "a/b", "${env:X}", "é", "x" * 300, ". .", "a\x1b[0m"])
def test_a_name_stays_one_folder_whatever_the_value_is(choice):
    (name,) = names(f"k={choice}")
    assert "/" not in name and name.isascii() and name.isprintable() and len(name) < 120
    assert name != names("k=_")[0]


def test_values_that_look_alike_have_folders_of_their_own():
    assert len(set(names("k=a/b,a_b,a b"))) == 3


def test_every_option_of_a_run_reaches_each_run_of_a_sweep(kitchen):
    kitchen.write("count.yaml", COUNT)
    parser, options, given = every_option(kitchen)
    (kitchen.folder / "out").mkdir()
    found = sweep_plan(parser.parse_args(["count.yaml", "run_dir=out", *given, "--sweep", "weight=1.0,2.0"]))
    assert len(found.points) == 2
    for point in found.points:
        again, meant = (vars(one) for one in (parser.parse_args(found.words(point)), found.arguments_of(point)))
        assert again == meant, "by a process of its own as by this one"
        assert all(again[one.dest] != one.default for one in options)


def test_a_folder_that_the_environment_names_is_written_down_by_its_name_alone(kitchen, monkeypatch):
    monkeypatch.setenv("WHERE", "somewhere")
    kitchen.write("count.yaml", COUNT)
    parser = VerbParser()
    run.add_arguments(parser)
    words = ["count.yaml", "run_dir=${env:WHERE}/runs", f"--trust={PARTS}", "--sweep", "weight=1.0,2.0"]
    found = sweep_plan(parser.parse_args(words))
    assert found.folder == Path("somewhere/runs")
    for point in found.points:
        row = sweep_table.waiting_row(found, point)
        assert "run_dir=${env:WHERE}/runs/" + point.name in row["words"] and "somewhere" not in json.dumps(row)


class _InThisProcess:
    """Runs the command of a sweep's run here: what a sweep makes of its runs needs no process of theirs."""

    def __init__(self, command: list[str], *, process_group: int) -> None:
        self._status = main(command[command.index("nemo_vfm") + 1 :])

    def wait(self) -> int:
        return self._status


def test_a_sweep_that_grows_keeps_the_rows_of_before_and_tells_the_first_status_that_is_not_0(
    kitchen, monkeypatch, capsys
):
    monkeypatch.setattr("nemo_vfm.runtime.sweep.subprocess", SimpleNamespace(Popen=_InThisProcess))
    kitchen.write("fail.yaml", "_target_: @.Fail\nhow: nothing\n")
    kitchen.write("count.yaml", COUNT)
    assert kitchen.main("run", "count.yaml", "run_dir=out", "--sweep", "weight=1.0") == 0
    assert kitchen.main("run", "count.yaml", "run_dir=out", "--sweep", "weight=2.0", "duration=2 steps,1 steps") == 0
    file = kitchen.folder / "out/sweep.json"
    rows = json.loads(file.read_text())["points"]
    assert rows[0]["name"] == "weight=1.0" and len(rows) == 3
    assert [row["figures"] for row in rows] == [{"steps": 1.0}, {"steps": 2.0}, {"steps": 1.0}]
    assert kitchen.main("run", "fail.yaml", "run_dir=bad", "--sweep", "how=nothing,unexpected") == 3
    failed = json.loads((kitchen.folder / "bad/sweep.json").read_text())["points"]
    assert [(row["state"], row["exit_status"]) for row in failed] == [("nothing_kept", 3), ("failed", 1)]
    capsys.readouterr()
    assert kitchen.main("report", "out") == 0
    assert [{**row, "seconds": 0} for row in rows] == [
        {**row, "seconds": 0} for row in json.loads(file.read_text())["points"]
    ]
    assert capsys.readouterr().out.count(" done") == 3


def test_the_best_run_of_a_sweep_has_the_lowest_validation_loss_or_else_the_lowest_loss(capsys, tmp_path):
    def starred(*figures: dict[str, float]) -> list[int]:
        rows = [{"name": f"n={number}", "choices": {"n": f"n{number}"}, "state": "done", "seconds": 1.0, "figures": one}
                for number, one in enumerate(figures)]  # fmt: skip
        sweep_table.show(["n"], rows, tmp_path)
        lines = capsys.readouterr().out.splitlines()
        return [number for number in range(len(figures)) for line in lines if f"n{number} " in line and " *" in line]

    assert starred({"loss": 3.0, "val_loss": 1.0}, {"loss": 1.0, "val_loss": 2.0}, {"loss": 0.5}) == [0]
    assert starred({"train/loss": 3.0}, {"train/loss": 1.0}, {}) == [1]
    for name in ("val/loss", "valid_loss", "fit/val/loss", "fit/val_loss"):
        assert starred({"train/loss": 1.0, name: 3.0}, {"train/loss": 3.0, name: 1.0}) == [1]
    assert starred({"loss": 3.0}, {}) == starred({"steps": 1.0}, {"steps": 2.0}) == []


@pytest.mark.parametrize(("more", "best"), [("", 0), (", mode: min", 1)])
def test_the_best_run_of_a_sweep_is_that_by_the_metric_of_its_recipe(more, best, capsys, tmp_path):
    rows = [{"name": f"n{number}", "choices": {"n": f"n{number}"}, "state": "done", "seconds": 1.0,
             "figures": {"fit/loss": 1.0, "fit/val_loss": loss, "fit/val_auc": auc}}
            for number, (loss, auc) in enumerate(((0.9, 0.9), (0.1, 0.1)))]  # fmt: skip
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/recipe.yaml").write_text(f"steps: {{fit: {{loop: {{checkpoint: {{metric: val_auc{more}}}}}}}}}\n")
    sweep_table.show(["n"], rows, tmp_path)
    said = capsys.readouterr().out
    assert [f"n{best}" in line for line in said.splitlines() if "done *" in line] == [True]
    assert f"* {'lowest' if more else 'highest'} fit/val_auc." in said


@pytest.mark.parametrize(
    ("words", "axes_of", "changes"),
    [(["weight=1.0,2.0", "loggers=csv", "~a", "x={a: 1, b: [2, 3]}", "y='1,2'"], ["weight"], 4),
     (["loggers=csv", "weight=1.0,2.0", "seed=1,2"], ["weight", "seed"], 1), (["weight=1.0"], ["weight"], 0),
     (["~a", "weight=1.0", "seed=1"], ["weight"], 2), (["run_dir=a,b", "seed=1,2"], ["seed"], 1)],
)  # fmt: skip
def test_a_word_behind_sweep_that_has_one_value_is_a_change_of_every_run(words, axes_of, changes):
    assert [word.partition("=")[0] for word in swept_words(words)] == axes_of
    assert len(words) - len(swept_words(words)) == changes


def test_a_change_behind_sweep_reaches_every_run_and_names_none(kitchen, capsys):
    kitchen.write("count.yaml", COUNT)
    assert kitchen.main("check", "count.yaml", "--sweep", "weight=1.0,2.0", "duration=7 steps", "--work") == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [one["name"] for one in points] == ["weight=1.0", "weight=2.0"]
    assert kitchen.main("check", "count.yaml", "--sweep", "weight=1.0,2.0", "durations=7 steps") == 2
    assert "did you mean duration" in capsys.readouterr().out


@pytest.mark.slow  # three runs in processes of their own, 15 s
def test_a_sweep_runs_all_prints_a_table_and_goes_on(kitchen):
    kitchen.write("count.yaml", COUNT)
    done = kitchen.command("run", "count.yaml", "--sweep", "weight=1.0,2.0", "duration=1 steps")
    assert done.returncode == 0, done.stderr
    assert "comparison of runs" in (kitchen.folder / "runs/count-sweep/report.html").read_text()
    kept = json.loads((kitchen.folder / "runs/count-sweep/sweep.json").read_text())
    assert [point["state"] for point in kept["points"]] == ["done"] * 2
    assert kept["axes"] == {"weight": ["1.0", "2.0"]}
    table = done.stdout[done.stdout.rindex("weight  ") :]
    assert [line.split()[:2] for line in table.splitlines()[2:4]] == [["1.0", "done"], ["2.0", "done"]]
    again = kitchen.command("run", "count.yaml", "--sweep", "weight=1.0", "duration=1 steps")
    assert again.returncode == 0 and again.stdout.count("Nothing to do") == 1
    assert len(json.loads((kitchen.folder / "runs/count-sweep/sweep.json").read_text())["points"]) == 2


@pytest.mark.slow  # each run is a process
def test_one_that_is_killed_leaves_the_others(kitchen):
    kitchen.write("die.yaml", "_target_: @.Count\nduration: 3 steps\n")
    done = kitchen.command("run", "die.yaml", "--sweep", "die_at=1,0")
    kept = json.loads((kitchen.folder / "runs/die-sweep/sweep.json").read_text())["points"]
    assert [(point["state"], point["exit_status"]) for point in kept] == [("killed by signal 9", 137), ("done", 0)]
    assert done.returncode == 137


@pytest.mark.slow  # a process in a process
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGUSR1, 75)])
def test_a_signal_to_the_sweep_alone_ends_the_run_under_way_and_begins_no_other(kitchen, number, status):
    kitchen.write("long.yaml", "_target_: @.Count\nduration: 3000 steps\npause_s: 0.1\n")
    words = [sys.executable, "-m", "nemo_vfm", "run", "long.yaml", f"--trust={PARTS}", "--sweep", "weight=1.0,2.0"]
    out, err = kitchen.folder / "out", kitchen.folder / "said"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    sweep = preloaded.Started(words, cwd=kitchen.folder, out=out, err=err, env=environment)
    folder = kitchen.folder / "runs/long-sweep"
    while not (folder / "weight=1.0/steps/003").is_file():
        assert sweep.poll() is None
        time.sleep(0.05)
    sweep.send_signal(number)
    assert sweep.wait(120) == status
    assert f"{number.name} stopped the sweep with 2 of 2 runs left" in err.read_text()
    (row,) = json.loads((folder / "sweep.json").read_text())["points"]
    assert row["exit_status"] == status and row["state"] in ("preempted", "interrupted")
    assert not (folder / "weight=2.0").exists() and "comparison of runs" in (folder / "report.html").read_text()
    counted = len(list((folder / "weight=1.0/steps").iterdir()))
    time.sleep(0.5)
    assert counted == len(list((folder / "weight=1.0/steps").iterdir())), "the run has ended, too"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--sweep", "weight=1.0,heavy"], 'expected a number, got the text "heavy"'),
        (["--sweep", "wieght=1.0,2.0"], "did you mean weight?"),
        (["--sweep", "seed=1,one"], "seed must be a whole number"),
        (["weight=3.0", "--sweep", "seed=1,2", "weight=1.0,2.0"], "weight is set both by a change and by --sweep"),
        (["run_dir=held", "--sweep", "seed=1,2"], "held holds a run, not a sweep"),
    ],
)
def test_all_is_checked_before_anything_runs(kitchen, capsys, more, said):
    kitchen.write("count.yaml", COUNT)
    kitchen.write("held/recipe.yaml", COUNT)
    assert kitchen.main("run", "count.yaml", *more) == 2
    assert said in capsys.readouterr().err
    assert not (kitchen.folder / "runs").exists()


@pytest.mark.slow
def test_what_the_environment_says_is_written_nowhere(kitchen, monkeypatch):
    monkeypatch.setenv("PLACE", "somewhere-else")
    monkeypatch.setenv("SOME_TOKEN", "tok3n-of-mine")
    kitchen.write("wide.yaml", "_target_: @.Wide\nrun_dir: runs/${env:PLACE}\n")
    done = kitchen.command("run", "wide.yaml", "--sweep", "name=tok3n-of-mine")
    assert done.returncode == 0, done.stderr
    folder = kitchen.folder / "runs/somewhere-else-sweep"
    kept = json.loads((folder / "sweep.json").read_text())
    assert kept["axes"] == {"name": ["***"]} and kept["points"][0]["choices"] == {"name": "***"}
    assert "run_dir: runs/${env:PLACE}-sweep/name=" in (folder / kept["points"][0]["name"] / "recipe.yaml").read_text()
    files = [file for file in kitchen.folder.rglob("*") if file.name != "wide.yaml"]
    assert not [file for file in files if "tok3n" in file.name]
    texts = [file.read_text(errors="replace") for file in files if file.is_file()]
    assert not [text for text in texts if "tok3n-of-mine" in text or "somewhere-else" in text]


def test_a_recipe_may_ask_for_the_folder_where_it_is(kitchen, capsys):
    kitchen.write("wide.yaml", "_target_: @.Wide\nrun_dir: .\n")
    assert kitchen.main("run", "wide.yaml", "--sweep", "name=1") == 2
    assert "expected a text, got the number 1" in capsys.readouterr().err


def test_a_damaged_table_is_said_before_anything_runs(kitchen, capsys):
    kitchen.write("count.yaml", COUNT)
    kitchen.write("runs/count-sweep/sweep.json", '{"points": [')
    assert kitchen.main("run", "count.yaml", "--sweep", "weight=1.0") == 2
    assert "sweep.json is damaged" in capsys.readouterr().err
    assert [file.name for file in (kitchen.folder / "runs/count-sweep").iterdir()] == ["sweep.json"]


@pytest.mark.slow  # each run is a process
def test_a_run_of_a_sweep_imports_nothing_from_the_working_directory(kitchen):
    kitchen.write("wide.yaml", "_target_: @.Wide\n")
    kitchen.write("yaml.py", "from pathlib import Path\nPath('canary').touch()\n")
    code = "import sys; from nemo_vfm.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["run", "wide.yaml", "--sweep", "seed=1", f"--trust={PARTS}"]
    done = subprocess.run([sys.executable, "-P", "-c", code, *words], cwd=kitchen.folder, capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (kitchen.folder / "canary").exists()


def test_check_looks_at_every_combination_and_says_which_is_wrong(kitchen, capsys):
    kitchen.write("count.yaml", COUNT)
    assert kitchen.main("check", "count.yaml", "--sweep", "weight=1.0,heavy") == 2
    said = capsys.readouterr().out
    assert (
        said.index("weight=1.0\n") < said.index("count.yaml: ok") < said.index("weight=heavy\n") < said.index("heavy")
    )
    assert kitchen.main("check", "count.yaml", "--sweep", "weight=1.0,2.0") == 0
    assert not (kitchen.folder / "runs").exists()


@pytest.mark.slow  # each run is a process
def test_a_report_of_a_sweep_takes_what_its_runs_say_by_now(kitchen, capsys):
    kitchen.write("count.yaml", COUNT)
    assert kitchen.command("run", "count.yaml", "--sweep", "weight=1.0").returncode == 0
    file = kitchen.folder / "runs/count-sweep/sweep.json"
    kept = json.loads(file.read_text())
    for point in kept["points"]:
        point |= {"state": "waiting", "exit_status": None, "figures": {}}
    kept["points"].append({**kept["points"][0], "name": "never", "state": "waiting"})
    file.write_text(json.dumps(kept))
    assert kitchen.main("report", "runs/count-sweep") == 0
    again = json.loads(file.read_text())["points"]
    assert [point["state"] for point in again] == ["done", "waiting"]
    assert again[0]["figures"] and capsys.readouterr().out.count(" done") == 1
    assert kitchen.main("runs", "runs/count-sweep", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
