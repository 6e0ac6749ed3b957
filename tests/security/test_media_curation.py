"""Tests that curations of hostile media keep, drop or fail each file with a reason, and that the ledger adds up."""

import json
import os
import resource

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.examine.sandbox import ChildLimits
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.execute.process_executor import Processes
from nemo_vfm.curate.execute.ray_executor import Ray
from tests.support.films import job, pan, write_film
from tests.support.misbehaving import CRASHES, EATS, HANGS, RAISES, Misbehaves
from tests.support.mutations import generation
from tests.support.repository import ROOT

GROWN_BYTES = 600e6  # of this process, over a curation of small films


def write(folder, mutants):
    folder.mkdir()
    for mutant in mutants:
        (folder / mutant.name).write_bytes(mutant.content)
    return folder


def fates(folder):
    """File -> (decision, reason)."""
    files = json.loads((folder / "files.json").read_text())
    assert len({file["file"] for file in files}) == len(files)
    return {file["file"]: (file["decision"], file.get("reason")) for file in files}


def assert_it_adds_up(folder, count):
    ledger = json.loads((folder / "ledger.json").read_text())
    assert ledger["files"]["in"] == count
    for unit, side in ledger.items():
        out = side["kept"] + sum(side["dropped"].values()) + sum(side["failed"].values())
        assert out == pytest.approx(side["in"], abs=1e-5), unit


def curated(films, folder, mutants, **changes):
    """Curate, and hold what is promised of any curation."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    job(films, limits=ChildLimits(memory_gb=2.0, silence_s=60.0), **changes).run(Run(folder))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < GROWN_BYTES
    assert_it_adds_up(folder, len(mutants))
    found = fates(folder)
    assert found.keys() == {mutant.name for mutant in mutants}
    for mutant in mutants:
        decision, reason = found[mutant.name]
        assert decision in ("kept", "dropped", "failed"), mutant
        assert decision == "kept" or (reason and "\n" not in reason and len(reason) <= 400), (mutant.name, reason)
        # Two by two pixels can be decoded, and motion says that it sees nothing in so few.
        assert decision != "failed" or not mutant.sound or mutant.kind == "tiny", (mutant.name, reason)
    return found


@pytest.fixture
def no_programs(tmp_path, monkeypatch):
    """Programs called ffmpeg and ffprobe that leave a mark, first in the path, and an empty working directory."""
    programs, here = tmp_path / "programs", tmp_path / "here"
    programs.mkdir()
    here.mkdir()
    for name in ("ffmpeg", "ffprobe"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nsleep 60\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(here)
    yield
    assert not (tmp_path / "called").exists(), "a program was called"
    assert not list(here.iterdir()), "something was written into the working directory"


@pytest.mark.slow
@pytest.mark.usefixtures("no_programs")
def test_25_mutated_files_each_have_a_fate_and_the_same_one_whoever_works(tmp_path):
    mutants = generation(seed=1, count=25)
    films = write(tmp_path / "films", mutants)
    found = [
        curated(films, tmp_path / name, mutants, executor=executor)
        for name, executor in (("inline", Inline()), ("processes", Processes(workers=2)))
    ]
    assert found[0] == found[1]
    assert {decision for decision, _ in found[0].values()} >= {"kept", "failed"}


@pytest.mark.soak
@pytest.mark.usefixtures("no_programs")
@pytest.mark.parametrize("executor", [Inline(), Processes(workers=2)], ids=["inline", "processes"])
def test_200_mutated_files_each_have_a_fate(executor, tmp_path):
    mutants = generation(seed=2, count=200)
    found = curated(write(tmp_path / "films", mutants), tmp_path / "run", mutants, executor=executor)
    assert {decision for decision, _ in found.values()} >= {"kept", "failed"}


@pytest.mark.soak
@pytest.mark.usefixtures("no_programs")
def test_100_mutated_files_each_have_a_fate_on_ray(tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    try:
        mutants = generation(seed=3, count=100)
        films = write(tmp_path / "films", mutants)
        found = curated(films, tmp_path / "run", mutants, executor=Ray(cpus_per_actor=0.5))
    finally:
        ray.shutdown()
    assert {decision for decision, _ in found.values()} >= {"kept", "failed"}


@pytest.mark.parametrize(
    ("executor", "bad"),
    [
        pytest.param(Processes(workers=2), (HANGS, CRASHES, EATS, RAISES), id="processes"),
        pytest.param(Inline(), (CRASHES, EATS), id="inline"),
    ],
)
@pytest.mark.slow
def test_films_that_hang_crash_or_fill_their_process_fail_alone_and_by_name(executor, bad, tmp_path):
    films = tmp_path / "films"
    films.mkdir()
    for seed, count in enumerate((20, *bad, 21)):
        write_film(films / f"{count}.mp4", pan(seed, count))
    curation = job(
        films, executor=executor, limits=ChildLimits(memory_gb=1.0, silence_s=8.0), rules={},
        stages={"misbehaves": Misbehaves()},
    )  # fmt: skip
    curation.run(Run(tmp_path / "run"))
    found = fates(tmp_path / "run")
    words = {
        HANGS: "gave no sign of life for 8 s",
        CRASHES: "was killed by SIGSEGV",
        EATS: "memory",
        RAISES: "this clip is bad",
    }
    for count in bad:
        decision, reason = found.pop(f"{count}.mp4")
        assert decision == "failed" and words[count] in reason, reason
    assert found == {"20.mp4": ("kept", ""), "21.mp4": ("kept", "")}
    assert_it_adds_up(tmp_path / "run", 2 + len(bad))


@pytest.mark.slow
def test_names_of_files_steer_no_terminal(tmp_path, capfd):
    films = tmp_path / "films"
    films.mkdir()
    for name in ("\x1b]0;evil\x07bad.mp4", "x\nERROR forged.mp4", "\u202egnp.mp4"):
        (films / name).write_bytes(b"no film" * 9)
    recipe = str(ROOT / "recipes/curation/clips.yaml")
    assert main(["run", recipe, f"run_dir={tmp_path / 'run'}", f"source.path={films}"]) != 0
    said = "".join(capfd.readouterr())
    assert "?]0;evil?bad.mp4" in said
    assert not {"\x1b]", "\x07", "\u202e"} & {said[at : at + width] for at in range(len(said)) for width in (1, 2)}
    assert "\nERROR forged" not in said
