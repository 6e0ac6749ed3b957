"""Tests for every recipe where it asks for GPUs, and that sbatch gets the bytes that a dry run shows."""

import argparse
import os
from pathlib import Path

import pytest

from launcher.plan.launch import prepare
from launcher.plan.recipe_info import CommandOutput
from launcher.request.request import add_arguments, parse_request
from launcher.state.submission import check_launch, submit
from launcher.verbs.submit import run_launch
from nemo_vfm.config import Roots
from tests.support.fake_queue import FakeQueue
from tests.support.repository import ROOT

RECIPES = [name for name, file in Roots.standard().all_recipes() if file.resolve().is_relative_to(ROOT)]


def test_there_are_recipes():
    assert len(RECIPES) > 20


def words(name: str, *changes: str):
    """A recipe on a cluster that suits it."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse_request(parser.parse_args([name, "cluster=dgx_h100", "run_dir=runs/r", *changes]))


#: A workflow, one that needs GPUs, a language model and a large layout; the others are tried by `make test-slow`.
QUICK = {"quickstart", "curation/full_gpu", "llm/stories", "diffusion/dit_7b_8k"}


TRIED = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in RECIPES]


@pytest.mark.parametrize("name", TRIED)
def test_what_a_dry_run_shows_is_what_sbatch_gets(name, tmp_path, monkeypatch, capsys, asked_here):
    queue = FakeQueue(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{queue.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    # What is said beside the scripts takes a minute for the largest, and has tests of its own.
    monkeypatch.setattr("launcher.plan.preflight.query_plan", lambda *_, **__: "not asked here")
    monkeypatch.setattr("launcher.plan.preflight.query_check", lambda *_, **__: CommandOutput(0, "ok"))
    assert run_launch(prepare(words(name)), dry_run=True, with_script=True) == 0
    shown = capsys.readouterr().out
    launch = prepare(words(name))
    submit(launch, check_launch(launch)[0])
    given = [queue.submitted(101 + number).decode() for number in range(len(launch.shares))]
    if len(given) == 1:
        assert shown == given[0]
    else:
        names = [Path(call[-1]) for call in queue.asked("sbatch")]
        assert shown == "".join(f"# -------- {name}\n{text}" for name, text in zip(names, given, strict=True))


#: Jobs that compute on a GPU whatever they hold; of the others, those that a learned part of theirs makes do so.
COMPUTING = {"Train", "Sample", "Generate", "LightningFit"}
LEARNED = {"curation/full_gpu": {"job"}, "curation/check_captions": {"job"}, "diffusion/train_autoencoder": {"encode"}}


@pytest.fixture
def dry(tmp_path, monkeypatch, asked_here):
    """GPUs of a node that each job of a dry run asks for; whether its networks can be built is not asked here."""
    monkeypatch.chdir(tmp_path)
    for check in ("meta_build.refusals", "shareable_batches.unshareable"):
        monkeypatch.setattr(f"nemo_vfm.runtime.checks.{check}", lambda *_: [])
    return lambda name, *changes: prepare(words(name, *changes, "--trust=nemo", "--allow-host=127.0.0.1:9")).shares


@pytest.mark.parametrize("name", TRIED)
def test_a_recipe_asks_for_gpus_exactly_where_it_trains_or_a_learned_part_of_it_computes(name, dry):
    shares = dry(name)
    computing = {share.name for share in shares if share.kind.rpartition(".")[2] in COMPUTING}
    assert {share.name for share in shares if share.gpus_per_node} == computing | LEARNED.get(name, set())


BARE = ("~stages.aesthetic", "~stages.learned_duplicate", "~captions.vlm", "~rules.plain")


@pytest.mark.parametrize(
    ("gpus", "name", "changes"),
    [(0, "curation/full_gpu", BARE), (1, "curation/full_gpu", (*BARE[1:], "rules.plain.keep=motion.global_mean > 0")),
     (1, "curation/full_gpu", (*BARE, "decode=nvdec")), (1, "curation/full_gpu", (*BARE, "transcode.encoder=nvenc")),
     (8, "curation/full_gpu", ("executor=ray", "executor.address=auto")),
     (0, "curation/clips", ("captions=endpoint", "captions.vlm.chat.endpoint.url=http://127.0.0.1:9/v1")),
     (1, "curation/clips", ("captions=vlm_folder",)), (0, "curation/encode", ("codec=haar",)),
     (0, "curation/embed_text", ()), (1, "curation/embed_text", ("text_encoder=t5",)),
     (1, "curation/encode", ("codec=trained_autoencoder", "codec.model=autoencoder_demo")),
     (0, "curation/encode", ("text_encoder=hashed",)), (1, "curation/encode", ("text_encoder=clip",)),
     (0, "lightning/boring", ("accelerator=cpu", "devices=8")), (1, "lightning/boring", ()),
     (8, "lightning/boring", ("accelerator=gpu", "devices=8")),
     (0, "curation/redecide", ("comparisons.learned_similarity={_target_: nemo_vfm.curate.learned.learned_duplicate."
      "LearnedDuplicate, model: {_target_: nemo_vfm.models.scorer.Scorer, folder: models/clip, outputs: 0}, "
      "task: {_target_: nemo_vfm.curate.learned.scorer_task.Recognise}}",)),
     (1, "transcribe.yaml", ())],
)  # fmt: skip
def test_a_job_asks_for_gpus_exactly_where_its_parts_compute_on_them(gpus, name, changes, dry, tmp_path):
    nemo = "nemo_vfm.nemo.transcribe"
    (tmp_path / "transcribe.yaml").write_text(
        f"_target_: {nemo}.Transcribe\nshards: a\nvideos: b\nspeech: {{_target_: {nemo}.NeMoSpeech, model: c}}\n"
    )
    assert [share.gpus_per_node for share in dry(name, *changes)] == [gpus]
