"""Tests that `convert` reads and writes transformers' folders of language models with their tokenizers."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from nemo_vfm.config import build, compose
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.language.generation import generate
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.convert.gpt_folder import load_gpt
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.train.warm_start import WarmStart
from tests.support.tiny_tokenizers import TEXTS, byte_level

transformers = pytest.importorskip("transformers", reason="needs the extra transformers")
from tests.support.language_models import FAMILIES, scores, words, written  # noqa: E402

RECIPE = """
_target_: nemo_vfm.train.job.Train
model:
  _target_: nemo_vfm.models.gpt.GPT
  vocab: 400
  width: 32
  depth: 2
  heads: 4
  mlp_hidden: 48
data:
  _target_: nemo_vfm.data.tokens.token_data.TokenData
  sources: {a: {_target_: nemo_vfm.data.tokens.token_data.TokenSource, folder: tokens}}
  sequence_length: 64
  batch_size: 2
  tokenizer: {_target_: nemo_vfm.data.tokenizers.folder_tokenizer.FolderTokenizer, folder: tokenizer}
task: {_target_: nemo_vfm.language.next_token_task.NextToken}
optimizer: {_target_: torch.optim.AdamW, lr: 1e-3}
loop:
  duration: 2 steps
  checkpoint: {_target_: nemo_vfm.train.callbacks.checkpointing.SaveCheckpoints, every_steps: 2}
"""


def trained(kitchen, name: str = "run") -> GPT:
    """A run folder with a checkpoint, and what is in it; tokens themselves are not needed."""
    run = kitchen.folder / name
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.yaml").write_text(RECIPE)
    if not (kitchen.folder / "tokenizer").exists():
        byte_level(kitchen.folder / "tokenizer")
    torch.manual_seed(1)
    model = build(compose(run / "recipe.yaml")).model().eval()
    half = {weight: tensor / 2 for weight, tensor in model.state_dict().items()}
    checkpoint.save(run / "checkpoints", 2, {"ema": dict(model.state_dict()), "model": half}, {})
    return model


@pytest.mark.parametrize("family", [
    "llama 3.1, tied", "nemotron", "qwen 2", "phi 4 mini", "gemma 3, linear", "qwen 3 moe in windows",
])  # fmt: skip
def test_a_folder_comes_in_as_weights_a_model_and_a_tokenizer(family: str, kitchen, capfd) -> None:
    written(kitchen.folder / "theirs", family)
    byte_level(kitchen.folder / "theirs")
    assert kitchen.main("convert", "theirs", "ours") == 0
    out = kitchen.folder / "ours"
    said = capfd.readouterr().out
    assert said.startswith(f"a {json.loads((kitchen.folder / 'theirs/config.json').read_text())['architectures'][0]}: ")
    assert " parameters, conf/model/converted.yaml; with its tokenizer\n" in said and said.endswith(
        "; 0 left, 0 missing\nours\n"
    )
    whole = RECIPE.replace(RECIPE[RECIPE.index("model:") : RECIPE.index("data:")], "")
    recipe = kitchen.write("recipe.yaml", f"defaults: [{{model: converted}}]\n{whole}")
    model = build(compose(recipe, [], [out / "conf"])).model()
    taken = WarmStart(path=out).load_into(model)
    assert taken["not_taken"] == [] and taken["weights"] == "model"
    assert torch.equal(scores(model, words()), scores(load_gpt(kitchen.folder / "theirs"), words()))
    assert FolderTokenizer(folder=out / "tokenizer").encode(TEXTS) == FolderTokenizer(
        folder=kitchen.folder / "theirs"
    ).encode(TEXTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_came_in_goes_out_as_it_was(family: str, kitchen, capfd) -> None:
    theirs = written(kitchen.folder / "theirs", family, vocab_size=400)
    byte_level(kitchen.folder / "theirs", split_digits=True)
    assert kitchen.main("convert", "theirs", "ours") == 0
    assert kitchen.main("convert", "ours", "again", "--to", "transformers") == 0
    again = transformers.AutoModelForCausalLM.from_pretrained(kitchen.folder / "again").eval()
    # Mistral without a sliding window is Llama and Phi-3 with whole heads Mistral, and they go out as such.
    other = {"mistral": "LlamaForCausalLM", "phi 3": "MistralForCausalLM"}.get(family)
    assert type(again).__name__ == (other or type(theirs).__name__)
    with torch.no_grad():
        found, expected = again(words()).logits, theirs(words()).logits
    close = (found - expected).abs().max() <= 1e-5 * expected.abs().max()  # of one fused product, or of three
    assert close if family == "phi 3" else torch.equal(found, expected)
    if family.startswith("qwen 2"):  # AutoTokenizer takes its own class for this kind of model, whatever the files say
        assert "load it from ours/tokenizer directly" in capfd.readouterr().err.replace("\n", " ")
        (kitchen.folder / "again/config.json").unlink()
    tokenizer = transformers.AutoTokenizer.from_pretrained(kitchen.folder / "again", local_files_only=True)
    ours = FolderTokenizer(folder=kitchen.folder / "again")
    assert [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS] == ours.encode(TEXTS)


@pytest.mark.parametrize(("named", "key"), [("run", None), ("run/checkpoints/step-00000002", "model")])
def test_a_run_goes_out_and_transformers_reads_and_writes_as_ours(named: str, key: str | None, kitchen, capfd) -> None:
    model = trained(kitchen)
    more = ["--key", key] if key else []
    assert kitchen.main("convert", named, "out", "--to", "transformers", *more) == 0
    assert capfd.readouterr().out.endswith(" parameters, for transformers; with its tokenizer\nout\n")
    if key == "model":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter /= 2
    theirs = transformers.AutoModelForCausalLM.from_pretrained(kitchen.folder / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(words()).logits, scores(model, words()), atol=1e-4, rtol=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(kitchen.folder / "out", local_files_only=True)
    ours = FolderTokenizer(folder=kitchen.folder / "tokenizer")
    assert [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS] == ours.encode(TEXTS)
    beginning = ours.encode(["The miller"])[0]
    (found,) = generate(
        model, [beginning], max_new=12, choice=Choice(temperature=0), seeds=[0], stop=frozenset([ours.end()])
    )
    told = theirs.generate(torch.tensor([beginning]), max_new_tokens=12, do_sample=False)[0, len(beginning) :].tolist()
    assert [token for token in told if token != ours.end()] == found
    assert theirs.config.max_position_embeddings == 64 and theirs.generation_config.eos_token_id == ours.end()


#: As of Llama 3 and Qwen 2.5: several tokens end a text, and a way to sample.
GENERATION = {"bos_token_id": 0, "do_sample": True, "eos_token_id": [7, 1, 9], "pad_token_id": 7, "temperature": 0.6,
              "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.05, "transformers_version": "4.43.0"}  # fmt: skip


@pytest.mark.parametrize("tokenizer", [True, False])
def test_how_a_model_writes_texts_comes_in_and_goes_out_whole(tokenizer: bool, kitchen) -> None:
    written(kitchen.folder / "theirs", "llama", vocab_size=400)
    if tokenizer:
        byte_level(kitchen.folder / "theirs")
    (kitchen.folder / "theirs/generation_config.json").write_text(json.dumps(GENERATION))
    assert kitchen.main("convert", "theirs", "ours") == 0
    assert kitchen.main("convert", "ours", "again", "--to", "transformers") == 0
    assert json.loads((kitchen.folder / "again/generation_config.json").read_text()) == GENERATION
    assert json.loads((kitchen.folder / "again/config.json").read_text())["eos_token_id"] == [7, 1, 9]
    again = transformers.AutoModelForCausalLM.from_pretrained(kitchen.folder / "again")
    assert again.generation_config.eos_token_id == [7, 1, 9] and again.generation_config.temperature == 0.6


def test_a_run_goes_out_with_what_lies_beside_its_tokenizer_and_ends_texts_as_its_documents(kitchen) -> None:
    trained(kitchen)
    file = kitchen.folder / "tokenizer/generation_config.json"
    for number, (ends, expected) in enumerate((([7, 1, 9], [7, 1, 9]), ([7, 9], [7, 9, 1]), (None, 1))):
        file.write_text(json.dumps(GENERATION | {"eos_token_id": ends}))
        out = kitchen.folder / f"out{number}"
        assert kitchen.main("convert", "run", out.name, "--to", "transformers") == 0
        told = json.loads((out / "generation_config.json").read_text())
        assert {**told, "_from_model_config": 0} == {**GENERATION, "eos_token_id": expected, "_from_model_config": 0}
    file.write_text(json.dumps({"eos_token_id": [7, 400]}))
    assert kitchen.main("convert", "run", "out", "--to", "transformers") == 1


def test_tokens_that_config_json_alone_names_end_texts_after_conversion(kitchen) -> None:
    written(kitchen.folder / "theirs", "llama", vocab_size=400, eos_token_id=[7, 9], pad_token_id=7)
    (kitchen.folder / "theirs/generation_config.json").unlink()
    assert kitchen.main("convert", "theirs", "ours") == 0
    assert kitchen.main("convert", "ours", "again", "--to", "transformers") == 0
    told = transformers.GenerationConfig.from_pretrained(kitchen.folder / "again")
    assert (told.eos_token_id, told.pad_token_id) == ([7, 9], 7)


def test_weights_go_out_in_bfloat16_and_with_another_tokenizer(kitchen) -> None:
    trained(kitchen)
    byte_level(kitchen.folder / "other", split_digits=True)
    asked = ["--to", "transformers", "--dtype", "bf16", "--tokenizer", "other", "--max-tokens", "32"]
    assert kitchen.main("convert", "run", "out", *asked) == 0
    config = json.loads((kitchen.folder / "out/config.json").read_text())
    assert (config["torch_dtype"], config["max_position_embeddings"]) == ("bfloat16", 32)
    assert (
        FolderTokenizer(folder=kitchen.folder / "out").fingerprint()
        == FolderTokenizer(folder=kitchen.folder / "other").fingerprint()
    )


def test_what_cannot_be_is_said_and_leaves_nothing(kitchen, capfd) -> None:
    trained(kitchen)
    byte_level(kitchen.folder / "empty")
    written(kitchen.folder / "theirs", "llama")
    shutil.rmtree(kitchen.folder / "tokenizer")
    for given, status, said in (
        (["run", "out", "--to", "transformers"], 2, "download the tokenizer first"),
        (["run", "out", "--dtype", "bf16"], 2, "--dtype needs --to transformers"),
        (["empty", "out", "--to", "transformers"], 2, "is not a run folder"),
        (["theirs", "out", "--to", "transformers"], 2, "is already a transformers folder"),
        (["run", "out", "--to", "transformers", "--key", "teacher", "--tokenizer", "empty"], 2, "no teacher weights"),
    ):  # fmt: skip
        assert kitchen.main("convert", *given) == status, given
        assert said in capfd.readouterr().err.replace("\n", " "), given
        assert not (kitchen.folder / "out").exists()


def test_a_tokenizer_of_another_model_is_refused(kitchen, capfd) -> None:
    trained(kitchen)
    recipe = kitchen.folder / "run/recipe.yaml"
    recipe.write_text(RECIPE.replace("vocab: 400", "vocab: 300"))
    assert kitchen.main("convert", "run", "out", "--to", "transformers") == 2
    assert "tokens, but the model has 300" in capfd.readouterr().err


def test_a_training_begins_with_a_folder_of_transformers(tmp_path: Path) -> None:
    written(tmp_path / "theirs", "llama 3.1, tied")
    expected = load_gpt(tmp_path / "theirs")
    model = load_gpt(tmp_path / "theirs")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    taken = WarmStart(path=tmp_path / "theirs").load_into(model)
    assert torch.equal(scores(model, words()), scores(expected, words()))
    assert taken["path"] == str(tmp_path / "theirs") and len(taken["sha256"]) == 16


def test_weights_that_would_mean_another_function_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "theirs", "llama")
    plain = {"vocab": 96, "width": 48, "depth": 3, "heads": 6, "groups": 2, "head_dim": 8, "mlp_hidden": 80}
    with pytest.raises(ValueError, match=r"eps is 1e-06 there and 1e-05 here\. `nemo-vfm convert .*theirs OUT`"):
        WarmStart(path=tmp_path / "theirs").load_into(GPT(**plain))
    with pytest.raises(ValueError, match="tied is False there and True here"):
        WarmStart(path=tmp_path / "theirs").load_into(GPT(**plain, eps=1e-6, tied=True))
    with pytest.raises(ValueError, match="has no averaged weights"):
        WarmStart(path=tmp_path / "theirs", weights="ema").load_into(GPT(**plain, eps=1e-6))
    with pytest.raises(ValueError, match="to be initialised has no GPT"):
        WarmStart(path=tmp_path / "theirs").load_into(torch.nn.Linear(2, 2))
    larger = GPT(**(plain | {"vocab": 100}), eps=1e-6)
    with pytest.raises(ValueError, match="do not fit this model"):
        WarmStart(path=tmp_path / "theirs").load_into(larger)
    taken = WarmStart(path=tmp_path / "theirs", may_differ=["embedding", "head"]).load_into(larger)
    assert taken["not_taken"] == ["embedding.weight", "head.weight"]
