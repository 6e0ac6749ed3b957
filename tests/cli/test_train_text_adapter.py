"""Tests that a language model, of a recipe or of a transformers folder, is trained by an adapter and written again."""

import json
import re
from pathlib import Path

import pytest
import torch

from nemo_vfm.cli.serving.load_served import ServedSource, load_served
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.models.convert.gpt_folder import load_gpt, write_gpt
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.text.tokenize import TokenizeText

transformers = pytest.importorskip("transformers", reason="needs the extra transformers")

from tests.support.language_models import scores  # noqa: E402
from tests.support.repository import ROOT  # noqa: E402

RECIPE = """
_target_: nemo_vfm.train.job.Train
model: {_target_: nemo_vfm.models.gpt.GPT, vocab: 300, width: 32, depth: 2, heads: 4, mlp_hidden: 48}
data:
  _target_: nemo_vfm.data.tokens.token_data.TokenData
  sources: {a: {_target_: nemo_vfm.data.tokens.token_data.TokenSource, folder: tokenized/tokens}}
  sequence_length: 16
  batch_size: 2
  tokenizer: {_target_: nemo_vfm.data.tokenizers.byte_tokenizer.ByteTokenizer}
task: {_target_: nemo_vfm.language.next_token_task.NextToken}
optimizer: {_target_: torch.optim.AdamW, lr: 1e-2}
loop:
  duration: 2 steps
  checkpoint: {_target_: nemo_vfm.train.callbacks.checkpointing.SaveCheckpoints, every_steps: 2}
"""
TUNED = "defaults: [{weights.adapters: lora_text}]\n"
OF_FOLDER = "model={_target_: nemo_vfm.models.convert.gpt_folder.gpt_of_folder, folder: theirs}"


def tokenized(folder: Path) -> None:
    texts = folder / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"a line of some length, number {n}"}) + "\n" for n in range(20)))
    TokenizeText(path=texts, tokenizer=ByteTokenizer(), processes=1).run(Run(folder / "tokenized"))


def written(folder: Path) -> GPT:
    """A folder of transformers, in bfloat16."""
    model = GPT(vocab=300, width=32, depth=2, heads=4, mlp_hidden=48, init_std=0.3)
    write_gpt(model, dict(model.named_parameters()), folder, 64, dtype=torch.bfloat16)
    return load_gpt(folder)


@pytest.mark.slow
def test_a_network_of_a_folder_is_refused_where_nothing_brings_the_folders_weights(kitchen) -> None:
    written(kitchen.folder / "theirs")
    kitchen.write("train.yaml", RECIPE)
    assert kitchen.main("check", "train.yaml", OF_FOLDER, "weights.start_from=theirs") == 0
    refused = kitchen.command("check", "train.yaml", OF_FOLDER)
    assert refused.returncode == 2 and "set weights.start_from to the same folder" in refused.stdout, refused.stdout
    generate = [str(ROOT / "recipes/llm/generate.yaml"), "model.folder=theirs"]
    assert (kitchen.main("check", *generate), kitchen.main("check", *generate, "~checkpoint")) == (0, 2)


@pytest.mark.slow  # trains twice
def test_a_folder_trains_in_the_recipes_precision_and_its_adapters_go_wherever_others_go(kitchen) -> None:
    tokenized(kitchen.folder)
    theirs = written(kitchen.folder / "theirs")
    kitchen.write("train.yaml", f"weights: {{start_from: theirs}}\n{RECIPE}")
    kitchen.write("tuned.yaml", f"{TUNED}weights: {{start_from: theirs}}\n{RECIPE}")
    assert kitchen.main("run", "train.yaml", OF_FOLDER, "run_dir=runs/full") == 0
    weights = checkpoint.weights_of(checkpoint.open_checkpoint(kitchen.folder / "runs/full"), "model")
    assert {weights[name].dtype for name in weights} == {torch.float32}
    moved = (weights["head.weight"] - theirs.head.weight).abs().max()
    assert 0 < moved < 0.03, "two steps of AdamW move a weight by two learning rates"

    assert kitchen.main("run", "tuned.yaml", OF_FOLDER, "run_dir=runs/tuned") == 0
    assert kitchen.main("convert", "runs/tuned", "mine", "--adapter", "ours") == 0
    assert kitchen.main("convert", "runs/tuned", "out", "--to", "transformers", "--max-tokens", "16") == 0
    served = load_served(ServedSource(kitchen.folder / "runs/tuned", precision="fp32"))
    words = torch.arange(10)[None]
    assert torch.equal(scores(served.model, words), scores(load_gpt(kitchen.folder / "out"), words))
    assert not torch.equal(scores(served.model, words), scores(theirs, words))


@pytest.mark.slow  # trains twice
def test_an_adapter_of_a_language_model_is_trained_and_merged(kitchen, capfd) -> None:
    tokenized(kitchen.folder)
    kitchen.write("base.yaml", RECIPE)
    kitchen.write("tuned.yaml", f"{TUNED}weights: {{start_from: runs/base}}\n{RECIPE}")
    assert kitchen.main("run", "base.yaml", "run_dir=runs/base") == 0
    assert kitchen.main("run", "tuned.yaml", "run_dir=runs/tuned", "weights.adapters.method=dora") == 0
    weights = checkpoint.weights_of(checkpoint.open_checkpoint(kitchen.folder / "runs/tuned"), "model")
    assert weights and all(".adapters." in name for name in weights)

    assert kitchen.main("convert", "runs/tuned", "mine", "--adapter", "ours") == 0
    assert kitchen.main("convert", "runs/tuned", "theirs", "--adapter", "peft") == 0
    refused = kitchen.command("convert", "runs/tuned", "other", "--adapter", "diffusers")
    assert refused.returncode == 1 and "the style diffusers is of video models" in refused.stderr, refused.stderr

    for run in ("base", "tuned"):
        assert kitchen.main("convert", f"runs/{run}", run, "--to", "transformers", "--max-tokens", "16") == 0
    counts = set(re.findall(r"weights of step 2: ([\d,]+) parameters", capfd.readouterr().out))
    assert len(counts) == 1, "adapters are not the model's parameters"
    base, tuned = (transformers.AutoModelForCausalLM.from_pretrained(kitchen.folder / run) for run in ("base", "tuned"))
    words = torch.arange(10)[None]
    with torch.no_grad():
        assert (base(words).logits - tuned(words).logits).abs().max() > 1e-3
    assert torch.equal(base.model.embed_tokens.weight, tuned.model.embed_tokens.weight), "it has no adapter"

    merge = ("convert", "theirs", "merged", "--to", "transformers", "--base", "base")
    assert kitchen.main(*merge) == 0
    merged = transformers.AutoModelForCausalLM.from_pretrained(kitchen.folder / "merged")
    with torch.no_grad():
        assert (merged(words).logits - tuned(words).logits).abs().max() < 1e-5

    served = load_served(ServedSource(kitchen.folder / "runs/tuned", precision="fp32"))
    with torch.no_grad():
        assert (scores(served.model, words) - tuned(words).logits).abs().max() < 1e-5
