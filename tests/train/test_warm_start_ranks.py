"""Tests that a folder of transformers gives the same training on any layout."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.synth.make_stories import story
from nemo_vfm.text.tokenize import TokenizeText
from tests.support.repository import ROOT

RECIPE = """
defaults: [{model: converted}, {optimizer: adamw}]
_target_: nemo_vfm.train.job.Train
data:
  _target_: nemo_vfm.data.tokens.token_data.TokenData
  sources: {a: {_target_: nemo_vfm.data.tokens.token_data.TokenSource, folder: tokens/tokens}}
  sequence_length: 64
  batch_size: 4
task: {_target_: nemo_vfm.language.next_token_task.NextToken}
optimizer: {lr: 1e-3}
loop:
  duration: 2 steps
  checkpoint: {_target_: nemo_vfm.train.callbacks.checkpointing.SaveCheckpoints, every_steps: 2}
precision: {_target_: nemo_vfm.core.precision.Precision, compute: fp32}
weights: {start_from: theirs}
parallel: {_target_: nemo_vfm.parallel.plan.plan.ParallelPlan}
"""
OF_FOLDER = "'model={_target_: nemo_vfm.models.convert.gpt_folder.gpt_of_folder, folder: theirs}'"


def nemo_vfm(folder: Path, *words: str) -> None:
    called = subprocess.run([sys.executable, "-m", "nemo_vfm", *words], cwd=folder, capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)  # fmt: skip
    assert called.returncode == 0, called.stderr[-2000:]


@pytest.mark.soak
def test_losses_after_a_folder_of_transformers_are_those_of_one_device(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra transformers")
    from tests.support.language_models import written

    written(tmp_path / "theirs", "llama 3.1, tied", vocab_size=260)
    texts = "".join(json.dumps({"text": story(0, number).text}) + "\n" for number in range(20))
    (tmp_path / "texts.jsonl").write_text(texts)
    TokenizeText(path=tmp_path / "texts.jsonl", tokenizer=ByteTokenizer(), processes=1).run(Run(tmp_path / "tokens"))
    (tmp_path / "r.yaml").write_text(RECIPE)
    nemo_vfm(tmp_path, "convert", "theirs", "ours")
    found = {}
    layouts = ("", "parallel.tensor=2", "parallel.shard=2", "parallel.pipeline=2 parallel.microbatches=2")
    for number, layout in enumerate((*layouts, "weights.start_from=ours", f"parallel.shard=2 {OF_FOLDER}")):
        nemo_vfm(tmp_path, "run", "r.yaml", "--conf", "ours/conf", f"run_dir=run{number}", *shlex.split(layout))
        lines = (tmp_path / f"run{number}" / "metrics.jsonl").read_text().splitlines()
        found[layout] = [json.loads(line)["loss"] for line in lines]
    assert all(losses == pytest.approx(found[""], abs=1e-5) and len(losses) == 2 for losses in found.values()), found
