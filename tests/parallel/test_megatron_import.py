"""Tests that Megatron-Core is imported only where it is chosen and run, and that what is broken beside it is told."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.language.next_token_task import NextToken
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.megatron.megatron_engine import MegatronEngine, require_megatron
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.repository import ROOT

CHECK = """
import json, sys
from nemo_vfm.cli.main import main
statuses = {}
for recipe in sys.argv[1:]:
    try:
        statuses[recipe] = main(["check", recipe, "engine=megatron"])
    except SystemExit as left:
        statuses[recipe] = left.code
print(json.dumps([statuses, [name for name in sys.modules if name.partition(".")[0] == "megatron"]]))
"""

ZERO_BUBBLE = ParallelPlan(pipeline=2, virtual=2, microbatches=2, schedule="zero_bubble")
#: Workflows, in which a step has the engine.
REFUSED = {
    "recipes/llm/distil_stories.yaml",
    "recipes/llm/own_text.yaml",
    "recipes/llm/stories.yaml",
    "recipes/diffusion/train_autoencoder.yaml",
} | {
    f"recipes/recommendation/{name}.yaml"
    for name in (
        "daily",
        "dcnv2_mlperf",
        "din_history",
        "dlrm_criteo",
        "dlrm_log",
        "dlrm_teacher",
        "hstu_history",
        "recd_session",
    )
}


def with_an_engine() -> list[str]:
    """Every recipe that names one as an ingredient."""
    found = [path for path in (ROOT / "recipes").rglob("*.yaml") if re.search(r"\bengine: *torch\b", path.read_text())]
    assert len(found) > 10
    return sorted(str(path.relative_to(ROOT)) for path in found)


@pytest.mark.slow
def test_every_recipe_is_checked_with_it_and_none_imports_it() -> None:
    command = [sys.executable, "-c", CHECK, *with_an_engine()]  # no copy, which other tests may have import it
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    statuses, imported = json.loads(done.stdout.splitlines()[-1])
    assert not imported
    said = " ".join((done.stdout + done.stderr).split())
    refused = {recipe for recipe, status in statuses.items() if status}
    assert refused >= REFUSED and "Workflow takes no argument engine; this recipe has steps.train.engine" in said
    assert refused == REFUSED, said


@pytest.mark.parametrize(("changes", "words"), [
    ({"plan": ZERO_BUBBLE}, "no zero-bubble schedule"),
])  # fmt: skip
def test_what_it_cannot_do_is_refused_before_anything_begins(changes: dict[str, Any], words: str) -> None:
    model = partial(GPT, vocab=96, width=48, depth=2, heads=8, mlp_hidden=64)
    given = {"precision": Precision("fp32"), "plan": ParallelPlan(), **changes}
    with pytest.raises(UserError, match=words):
        MegatronEngine().start(EngineInputs(model, NextToken(), partial(torch.optim.AdamW, lr=1e-3), seed=0, **given))


def test_a_broken_transformer_engine_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bare package raises RuntimeError, which Megatron-Core does not expect."""
    (tmp_path / "transformer_engine.py").write_text("raise RuntimeError('Found empty meta package')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"cannot be imported \(Found empty meta package\).*uninstall"):
        require_megatron()


def test_the_plan_counts_whole_weights_and_says_what_would_not_start() -> None:
    model = partial(GPT, vocab=96, width=48, depth=2, heads=8, mlp_hidden=64)
    adam, sgd = partial(torch.optim.AdamW, lr=1e-3), partial(torch.optim.SGD, lr=1e-3)
    ours = MegatronEngine().plan_for(2, ParallelPlan(shard=2), model, adam)
    theirs = TorchEngine().plan_for(2, ParallelPlan(shard=2), model, adam)
    assert ours.state_bytes["weights"] >= 1.9 * theirs.state_bytes["weights"]
    assert ours.state_bytes["optimizer"] == theirs.state_bytes["optimizer"]
    assert any("is SGD" in note for note in MegatronEngine().plan_for(2, ParallelPlan(), model, sgd).notes)
    assert any("no zero-bubble" in note for note in MegatronEngine().plan_for(2, ZERO_BUBBLE, model, adam).notes)
