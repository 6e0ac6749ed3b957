"""Tests that shards of a run work alone, at once and out of order, and that the whole run uses their results."""

import json
import sys
from pathlib import Path

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import JobShard, Needs, ShardedJob
from nemo_vfm.curate.job import Curate
from nemo_vfm.runtime.run_part import JobPart, part_of
from nemo_vfm.synth.generate_texts import Generate
from nemo_vfm.synth.sample_videos import Sample
from tests.support import preloaded
from tests.support.repository import ROOT

SHARED = "_target_: '@.Shared'\nnum: 10\n"
FLOW = (
    "_target_: nemo_vfm.workflow.Workflow\nrun_dir: out\nsteps:\n  first: {_target_: '@.Count', duration: 1 steps}\n"
    "  many: {_target_: '@.Shared', num: 10}\n"
)


def made(folder: Path) -> list[int]:
    return sorted(int(file.name) for file in (folder / "made").iterdir())


def state(folder: Path) -> str:
    return json.loads((folder / "status.json").read_text())["state"]


def test_parts_have_folders_of_their_own_and_the_whole_finds_their_work(kitchen, capsys):
    kitchen.write("r.yaml", SHARED)
    for number in (0, 1, 2):
        assert kitchen.main("run", "r.yaml", "run_dir=out", "--part", f"{number}/3") == 0
        assert state(Path(f"out/parts/0-{number:05d}-of-00003")) == "done"
    assert made(Path("out")) == list(range(10)) and not Path("out/status.json").exists()
    assert kitchen.main("run", "r.yaml", "run_dir=out", "--part", "1/3") == 0
    assert "Nothing to do" in capsys.readouterr().out
    assert kitchen.main("run", "r.yaml", "run_dir=out") == 0
    assert "made 0 of 10" in capsys.readouterr().out and state(Path("out")) == "done"
    assert kitchen.main("run", "r.yaml", "run_dir=out", "--part", "0/2") == 0
    assert "the whole run is already done" in capsys.readouterr().out


class _Rounds:
    """A job of two rounds."""

    def run(self, run):
        raise AssertionError

    def run_part(self, run, part):
        raise AssertionError

    def needs(self, **_):
        return Needs(rounds=2)


def test_a_part_of_another_round_or_of_so_many_others_tells_elsewhere_how_it_went(tmp_path):
    parts = [part_of(text) for text in ("0/2", "1/2", "0/3", "0/2@1", "1/2@1")]
    assert len({JobPart(_Rounds(), part, tmp_path, "").folder for part in parts}) == len(parts)
    with pytest.raises(UserError, match="has 2 rounds, counted from 0, got @2"):
        JobPart(_Rounds(), part_of("0/2@2"), tmp_path, "")


def test_parts_of_a_step_begin_when_the_steps_before_it_are_done(kitchen, capsys):
    kitchen.write("r.yaml", FLOW)
    assert kitchen.main("run", "r.yaml", "--only", "many", "--part", "0/2") == 2
    assert "step many comes after first, which is not done" in capsys.readouterr().err
    assert kitchen.main("run", "r.yaml", "--only", "first") == 0
    for number in (0, 1):
        assert kitchen.main("run", "r.yaml", "--only", "many", "--part", f"{number}/2") == 0
    assert made(Path("out/many")) == list(range(10))
    assert kitchen.main("run", "r.yaml") == 0
    assert "made 0 of 10" in capsys.readouterr().out


@pytest.mark.slow  # several processes
def test_parts_at_once_do_not_stand_in_each_others_way(kitchen):
    kitchen.write("r.yaml", SHARED)
    words = [sys.executable, "-m", "nemo_vfm", "run", "r.yaml", "run_dir=out", "--trust", "tests.support.parts"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(kitchen.folder)}
    said = [kitchen.folder / f"said-{number}" for number in range(4)]
    running = [
        preloaded.Started([*words, "--part", f"{number}/4"], env=environment, cwd=kitchen.folder, err=file)
        for number, file in enumerate(said)
    ]
    assert [one.wait(120) for one in running] == [0] * 4, [file.read_text()[-300:] for file in said]
    assert made(Path("out")) == list(range(10))


def test_a_part_of_another_recipe_is_refused(kitchen, capsys):
    kitchen.write("r.yaml", SHARED)
    assert kitchen.main("run", "r.yaml", "run_dir=out", "--part", "0/2") == 0
    assert kitchen.main("run", "r.yaml", "run_dir=out", "num=11", "--part", "1/2") == 2
    assert "out holds a run of a different recipe" in capsys.readouterr().err
    assert len(made(Path("out"))) < 10


def test_a_part_takes_the_keys_that_may_differ_and_names_the_recipe_as_a_whole_run_does(kitchen):
    file = kitchen.write("r.yaml", SHARED.replace("num: 10", "num: 10\nseed: 1"))
    for whole, words in (("parts", ("--part", "0/1")), ("whole", ())):
        assert kitchen.main("run", "r.yaml", f"run_dir={whole}", *words) == 0
        assert kitchen.main("run", "r.yaml", f"run_dir={whole}", "num=12", *words, "--allow", "num") == 0
        assert len(made(Path(whole))) == 12
    kept = [json.loads(Path(whole, "manifest.json").read_text()) for whole in ("parts", "whole")]
    assert kept[0]["recipe"] == kept[1]["recipe"] == file.stem
    assert [[list(change["keys"]) for change in one["changed"]] for one in kept] == [[["num"]], [["num"]]]


@pytest.mark.parametrize("text", ["", "8/8", "1", "-1/3", "1/0", "a/b", "1/2@", "1/2@-1"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(UserError, match="a number from 0"):
        part_of(text)


def test_a_part_says_which_it_is():
    assert part_of("3/8") == JobShard(3, 8) and part_of("0/2@1") == JobShard(0, 2, 1)


def test_each_name_is_of_one_part_whatever_the_others_are_called():
    names = [f"film {number}.mp4" for number in range(200)]
    owners = [[part for part in range(4) if JobShard(part, 4).has(name)] for name in names]
    assert all(len(one) == 1 for one in owners)
    assert min(sum(one == [part] for one in owners) for part in range(4)) > 25


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--part", "0/2@1"), "Shared has 1 round, counted from 0, got @1"),
        (("--part", "0/2", "--sweep", "num=1,2"), "a sweep runs each combination completely; drop --part 0/2"),
    ],
)
def test_what_parts_cannot_be_is_said(kitchen, capsys, words, said):
    kitchen.write("r.yaml", SHARED)
    assert main(["run", "r.yaml", "run_dir=out", "--trust", "tests.support.parts", *words]) == 2
    assert said in capsys.readouterr().err and not Path("out").exists()


def test_a_job_that_cannot_be_shared_out_says_so(kitchen, capsys):
    kitchen.write("r.yaml", FLOW)
    assert kitchen.main("run", "r.yaml", "--only", "first", "--part", "0/2") == 2
    assert "Count cannot be split into parts" in capsys.readouterr().err
    assert kitchen.main("run", "r.yaml", "--part", "0/2") == 2
    assert "Workflow cannot be split into parts; in a workflow, add --only STEP" in capsys.readouterr().err


def test_those_that_a_cluster_is_for_can_be_shared_out():
    assert all(issubclass(kind, ShardedJob) for kind in (Curate, Generate, Sample))
