"""Tests which steps of a workflow run again after runs, kills, changes and damage."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from nemo_vfm import workflow
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Needs, Outcome, Run
from nemo_vfm.workflow import OneStep, Workflow
from nemo_vfm.workflow.step_folder import StepFingerprint, _read_marker

STEPS = """_target_: nemo_vfm.workflow.Workflow
run_dir: out
steps:
  first: {_target_: '@.Count', duration: 3 steps}
  second: {_target_: '@.Count', duration: 2 steps, source: '${run_dir}/first/steps', %s}
  third: {_target_: '@.Count', duration: 1 steps, source: '${run_dir}/second/steps'}
"""


def calls(step, folder="out"):
    """How often a step has run, and from where."""
    file = Path(folder) / step / "calls.json"
    return [(call["from"], call["resume"]) for call in json.loads(file.read_text())] if file.is_file() else []


def ran():
    return {step: len(calls(step)) for step in ("first", "second", "third")}


@pytest.fixture
def cooked(kitchen):
    kitchen.write("r.yaml", STEPS % "weight: 1.0")
    assert kitchen.main("run", "r.yaml") == 0
    return kitchen


def test_steps_run_in_order_each_in_its_folder(cooked):
    assert ran() == {"first": 1, "second": 1, "third": 1}
    assert (Path("out/third/steps/000")).read_text() == "7"  # (0+1+2) + 0 and + 1 are 3 and 4
    assert json.loads(Path("out/status.json").read_text())["figures"] == {
        "first/steps": 3,
        "second/steps": 2,
        "third/steps": 1,
    }


def test_it_says_what_it_does(kitchen, capfd):
    kitchen.write("r.yaml", STEPS % "weight: 1.0")
    assert kitchen.main("run", "r.yaml") == 0
    said = capfd.readouterr()
    for text in ("[1/3] first: starts", "[2/3] second: counted to 2 steps", "[3/3] third: starts"):
        assert text in said.err
    assert "3 workflow steps done; counted to 1 steps" in said.out and "counted to 1 steps" not in said.err, "said once"
    assert "[3/3] third: done (0 s)" in said.err and said.out.splitlines()[-1] == "out/report.html"


def test_a_second_run_does_nothing(cooked, capsys):
    assert cooked.main("run", "r.yaml") == 0
    assert (
        "Nothing to do; this run is already finished: 3 workflow steps done, 3 of them before"
        in capsys.readouterr().out
    )
    assert ran() == {"first": 1, "second": 1, "third": 1}


def test_the_steps_of_an_inner_workflow_are_made_anew_where_one_above_it_has_changed(kitchen):
    inner = "  two: {_target_: nemo_vfm.workflow.Workflow, steps: {last: {_target_: '@.Count', duration: 1 steps}}}\n"
    for number, weight in enumerate((1.0, 1.0, 2.0), 1):
        first = f"  first: {{_target_: '@.Count', duration: 3 steps, weight: {weight}}}\n"
        kitchen.write("r.yaml", STEPS.partition("  first")[0] + first + inner)
        assert kitchen.main("run", "r.yaml", "--allow", "steps.first.weight") == 0
        assert len(list(Path("out/two").glob("_replaced/last-*"))) == (number == 3)


def test_a_killed_run_skips_what_is_done_and_resumes_what_is_not(kitchen):
    kitchen.write("r.yaml", STEPS % "die_at: 1")
    assert kitchen.forked("run", "r.yaml") == -9
    assert ran() == {"first": 1, "second": 0, "third": 0}
    assert kitchen.main("run", "r.yaml") == 0
    assert (calls("first"), calls("second"), calls("third")) == ([(0, False)], [(1, True)], [(0, False)])


def test_what_follows_a_changed_step_is_made_anew_and_nothing_is_lost(cooked):
    assert cooked.main("run", "r.yaml", "steps.second.weight=2.0", "--allow", "steps.second") == 0
    assert (calls("first"), calls("second"), calls("third")) == ([(0, False)], [(0, False), (2, True)], [(0, False)])
    assert calls("third-1", "out/_replaced") == [(0, False)]
    assert cooked.main("run", "r.yaml", "steps.second.weight=3.0", "--allow", "steps.second") == 0
    assert sorted(p.name for p in Path("out/_replaced").iterdir()) == ["third-1", "third-2"]


def test_a_longer_step_goes_on_and_what_follows_is_made_anew(cooked):
    assert cooked.main("run", "r.yaml", "steps.first.duration=4 steps") == 0
    assert calls("first") == [(0, False), (3, True)] and calls("second") == [(0, False)]
    assert Path("out/third/steps/000").read_text() == str((0 + 1 + 2 + 3) * 2 + 1)


def test_a_kill_while_followers_are_made_anew_does_not_mix_old_and_new(kitchen):
    kitchen.write("r.yaml", STEPS % "weight: 1.0")
    kitchen.main("run", "r.yaml")
    words = ("run", "r.yaml", "steps.first.duration=4 steps", "steps.second.die_at=1", "--allow", "steps.second")
    assert kitchen.forked(*words) == -9
    assert kitchen.main(*words) == 0
    assert calls("second") == [(1, True)] and calls("first") == [(0, False), (3, True)]
    assert Path("out/third/steps/000").read_text() == str((0 + 1 + 2 + 3) * 2 + 1)


def test_a_step_whose_folder_was_deleted_is_made_again(cooked):
    shutil.rmtree("out/second")
    assert cooked.main("run", "r.yaml") == 0
    assert ran() == {"first": 1, "second": 1, "third": 1} and calls("second") == [(0, False)]


def test_workers_and_cadence_do_not_make_a_step_undone(cooked):
    assert cooked.main("run", "r.yaml", "steps.first.log_every=7") == 0
    assert ran() == {"first": 1, "second": 1, "third": 1}


@pytest.mark.parametrize("loggers", [None, {}, {"tensorboard": {"_target_": "x"}, "csv": {"_target_": "y"}}])
def test_where_numbers_go_besides_is_no_part_of_what_a_step_is_asked(tmp_path, loggers):
    def asked(**settings: object) -> str:
        return StepFingerprint.of(Run(tmp_path, {"_target_": "a", **settings})).own

    assert asked(last=1, loggers=loggers) == asked(last=1) == asked(loggers=loggers, last=1)
    assert asked(last=2, loggers=loggers) != asked(last=1) != asked(last=1, my_loggers=loggers)
    assert asked(rules={"a": 1, "b": 2}) != asked(rules={"b": 2, "a": 1}), "rules are applied in order"


def test_a_moved_folder_is_still_done(cooked, capsys):
    Path("out").rename("moved")
    assert cooked.main("run", "r.yaml", "run_dir=moved") == 0
    assert "Nothing to do" in capsys.readouterr().out


def test_files_of_somebody_else_are_not_overwritten(kitchen, capsys):
    kitchen.write("r.yaml", STEPS % "weight: 1.0")
    kitchen.write("elsewhere/x", "1")
    Path("out").mkdir()
    (kitchen.folder / "elsewhere").rename("out/first")
    assert kitchen.main("run", "r.yaml") == 2
    assert "it holds first" in capsys.readouterr().err


def test_a_workflow_in_a_workflow_marks_its_own_steps(kitchen):
    kitchen.write(
        "recipes/inner.yaml", (STEPS % "die_at: 1").replace("run_dir: out\n", "").replace("${run_dir}", "out/in")
    )
    kitchen.write("r.yaml", "_target_: nemo_vfm.workflow.Workflow\nrun_dir: out\nsteps: {in: 'recipe:inner.yaml'}\n")
    assert kitchen.forked("run", "r.yaml") == -9
    assert kitchen.main("run", "r.yaml") == 0
    assert (calls("in/first"), calls("in/second")) == ([(0, False)], [(1, True)])


def test_what_an_interrupted_step_took_counts_in_what_it_takes(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(workflow.time, "monotonic", lambda: now[0])

    class Slow:
        def __init__(self, *, fails: bool) -> None:
            self.fails = fails

        def run(self, run: Run) -> Outcome:
            now[0] += 40
            if self.fails:
                raise ValueError("no")
            return Outcome("done", {})

    for fails in (True, True, False):
        with pytest.raises(ValueError, match="no") if fails else nullcontext():
            workflow.perform(
                Slow(fails=fails), Run(tmp_path / "out"), StepFingerprint("a", "b"), title="slow", ends_run=False
            )
    assert json.loads((tmp_path / "out/done.json").read_text())["seconds"] == 120


class _Ranked:
    """A job for so many ranks, which goes on with what its folder says."""

    def __init__(self, count: int) -> None:
        self.count = count

    def run(self, run: Run) -> Outcome:
        raise AssertionError

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        return Needs(ranks=self.count if folder is None else int((folder / "ranks.txt").read_text()))

    def require(self, num_ranks: int) -> None:
        if num_ranks != self.count:
            raise ValueError(f"{num_ranks} are not {self.count}")


def test_a_workflow_has_the_ranks_of_its_widest_step_and_each_spread_step_must_agree(tmp_path):
    whole = Workflow(steps={"alone": _Ranked(1), "two": _Ranked(2), "four": _Ranked(4)})
    assert whole.needs().ranks == 4 and Workflow(steps={"in": whole, "out": _Ranked(2)}).needs().ranks == 4
    for count, words in ((4, "step two: 4 are not 2"), (2, "step four: 2 are not 4")):
        with pytest.raises(ValueError, match=words):
            whole.require(count)
        Workflow(steps={"alone": _Ranked(1), "same": _Ranked(count)}).require(count)
    for name, count in (("two", 3), ("four", 8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ranks.txt").write_text(str(count))
        one = OneStep(whole, name)
        assert (one.needs().ranks, one.needs(folder=tmp_path).ranks) == (whole.steps[name].count, count)
        one.require(whole.steps[name].count)


def test_a_failed_step_ends_the_workflow_and_is_tried_again(kitchen, capsys):
    kitchen.write("r.yaml", "_target_: nemo_vfm.workflow.Workflow\nrun_dir: out\nsteps:\n"
                            "  a: {_target_: '@.Count', duration: 1 steps}\n  b: {_target_: '@.Fail', how: nothing}\n"
                            "  c: {_target_: '@.Count', duration: 1 steps}\n")  # fmt: skip
    assert kitchen.main("run", "r.yaml") == 3
    assert calls("a") == [(0, False)] and not Path("out/c").exists()
    assert kitchen.main("run", "r.yaml") == 3
    assert calls("a") == [(0, False)]


class Say:
    """A job without a recipe."""

    def run(self, run: Run) -> Outcome:
        (run.folder / "seen.txt").write_text(str(run.settings))
        return Outcome("said", {"x": 1.0})


def test_it_works_from_python_too(tmp_path):
    settings = {"steps": {"say": {"a": 1, "b": {"c": 2}}, "more": {"d": 3}}, "seed": 0}
    outcome = Workflow(steps={"say": Say(), "more": Say()}).run(Run(tmp_path, settings))
    assert outcome.figures == {"say/x": 1.0, "more/x": 1.0} and not outcome.did_nothing
    assert (tmp_path / "say/seen.txt").read_text() == "{'a': 1, 'b': {'c': 2}}"


class Break:
    """A job that fails."""

    def run(self, run: Run) -> Outcome:
        raise RuntimeError("broken")


def test_a_step_that_was_half_changed_is_not_done_when_the_change_is_taken_back(tmp_path):
    first, changed = (Run(tmp_path, {"steps": {"say": {"a": n}}}) for n in (1, 2))
    Workflow(steps={"say": Say()}).run(first)
    with pytest.raises(RuntimeError):
        Workflow(steps={"say": Break()}).run(changed)
    assert not Workflow(steps={"say": Say()}).run(first).did_nothing


@pytest.mark.parametrize(("steps", "words"), [({}, "at least one step"), ({"../x": Say()}, "also its folder")])
def test_a_workflow_that_cannot_be_is_refused(steps, words):
    with pytest.raises(ValueError, match=words):
        Workflow(steps=steps)


def test_steps_can_be_run_one_by_one(kitchen, capsys):
    kitchen.write("r.yaml", STEPS % "weight: 1.0")
    for number, step in enumerate(("first", "second", "third"), 1):
        assert kitchen.main("run", "r.yaml", "--only", step) == 0
        assert list(ran().values()) == [1] * number + [0] * (3 - number)
    assert kitchen.main("run", "r.yaml") == 0
    assert "3 workflow steps done, 3 of them before" in capsys.readouterr().out
    assert (Path("out/third/steps/000")).read_text() == "7"


def test_one_step_is_not_run_before_those_that_it_needs(kitchen, capsys):
    kitchen.write("r.yaml", STEPS % "weight: 1.0")
    assert kitchen.main("run", "r.yaml", "--only", "first") == 0
    assert kitchen.main("run", "r.yaml", "--only", "third") == 2
    assert (
        "step third comes after second, which is not done in out/second in the form of this recipe"
    ) in capsys.readouterr().err
    assert ran() == {"first": 1, "second": 0, "third": 0}


def test_a_step_whose_predecessor_was_done_otherwise_is_not_run(kitchen, capsys):
    kitchen.write("r.yaml", STEPS % "weight: 1.0")
    assert kitchen.main("run", "r.yaml") == 0
    changed = ["r.yaml", "steps.first.duration=4 steps", "--only", "third", "--allow", "steps.first.duration"]
    assert kitchen.main("run", *changed) == 2
    assert "step third comes after first, which is not done" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "fourth"), "there is no step fourth; the recipe has first, second, third"),
        (("--only", "first", "--sweep", "seed=1,2"), "a sweep runs each combination completely; drop --only first"),
    ],
)
def test_a_step_that_cannot_be_run_alone_is_refused(kitchen, capsys, words, said):
    kitchen.write("r.yaml", STEPS % "weight: 1.0")
    assert kitchen.main("run", "r.yaml", *words) == 2
    assert said in capsys.readouterr().err and not Path("out").exists()


def test_a_recipe_without_steps_has_none_to_be_run_alone(kitchen, capsys):
    kitchen.write("one.yaml", "_target_: '@.Count'\nduration: 1 steps\nrun_dir: one\n")
    assert kitchen.main("run", "one.yaml", "--only", "first") == 2
    assert "--only first: the recipe has no steps; drop --only" in capsys.readouterr().err


def test_no_step_takes_the_folder_of_the_launcher(kitchen, capsys):
    kitchen.write(
        "r.yaml", "_target_: nemo_vfm.workflow.Workflow\nsteps:\n  launch: {_target_: '@.Count', duration: 1 steps}\n"
    )
    assert kitchen.main("check", "r.yaml") == 2
    assert "no step may be called launch" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("content", [[], 3, None, {"before": "x"}, {"before": "x", "own": "y", "summary": "z"}])
def test_a_marker_that_no_step_leaves_is_a_sentence(tmp_path, content):
    (tmp_path / "done.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"is not a step's marker, which has before, own, summary, figures"):
        _read_marker(tmp_path / "done.json", "before", "own", "summary", "figures")
