"""Tests that folders of transformers' language models are read and written as the same function."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.sample_batches import IGNORED
from nemo_vfm.models.blocks.text_rope import LongContext, TextRope
from nemo_vfm.models.convert.gpt_folder import load_gpt, write_gpt
from nemo_vfm.models.convert.gpt_source import GptFolder, is_language_model
from nemo_vfm.models.gpt import GPT
from tests.support.language_models import FAMILIES, scores, words, written


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_same_both_ways_for_texts_shorter_and_longer_than_any_window(
    family: str, tmp_path: Path
) -> None:
    theirs = written(tmp_path / "theirs", family)
    ours = load_gpt(tmp_path / "theirs")
    write_gpt(ours, dict(ours.named_parameters()), tmp_path / "ours", max_tokens=256)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    for text in (words(), words()[:, :7]):
        with torch.no_grad():
            expected = theirs(text).logits
            for found in (scores(ours, text), again(text).logits):
                assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert torch.equal(scores(load_gpt(tmp_path / "ours"), words()), scores(ours, words()))


def test_experts_are_trained_by_the_loss_of_transformers_with_its_balance(tmp_path: Path) -> None:
    theirs = written(tmp_path, "qwen 3 moe", output_router_logits=True, router_aux_loss_coef=0.7)
    labels = words().clone()
    labels[0, 30:] = -100
    expected = theirs.train()(words(), labels=labels)
    expected.loss.backward()
    ours = load_gpt(tmp_path).train()
    after = torch.cat([labels[:, 1:], torch.full((2, 1), -100)], 1)
    after, count = torch.where(after == -100, IGNORED, after), (after != -100).sum()
    loss = ours(words(), after).sum() / count
    loss.backward()
    assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    found = ours.blocks[0].experts.router.weight.grad
    gate = theirs.model.layers[0].mlp.gate.weight.grad
    torch.testing.assert_close(found, gate, atol=1e-6, rtol=1e-3)
    assert (ours.eval()(words(), after).sum() / count).item() < loss.item() - 0.7  # which is left out of an evaluation


def test_a_folder_of_several_files_is_written_and_loaded(tmp_path: Path) -> None:
    theirs = written(tmp_path / "theirs", "llama 3.1, tied")
    ours = load_gpt(tmp_path / "theirs")
    write_gpt(
        ours,
        dict(ours.named_parameters()),
        tmp_path / "ours",
        256,
        dtype=torch.bfloat16,
        generation={"eos_token_id": 7},
        file_bytes=20_000,
    )
    files = sorted(path.name for path in (tmp_path / "ours").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert again.dtype == torch.bfloat16 and again.generation_config.eos_token_id == again.config.eos_token_id == 7
    assert all(torch.equal(w.bfloat16(), again.state_dict()[name]) for name, w in theirs.state_dict().items())
    assert torch.equal(load_gpt(tmp_path / "ours").head.weight, ours.head.weight.bfloat16().float())


def test_sizes_are_known_before_anything_is_read(tmp_path: Path) -> None:
    written(tmp_path, "llama 3.1, tied")
    with GptFolder(tmp_path) as folder:
        model = load_gpt(tmp_path)
        assert {name: folder.shape(name) for name in folder} == {
            name: tuple(tensor.shape) for name, tensor in model.state_dict().items()
        }
        assert all(torch.equal(folder[name], tensor) for name, tensor in model.state_dict().items())
        assert folder.num_values() == sum(parameter.numel() for parameter in model.parameters())
        assert folder.dtype("blocks.0.attention.qkv.weight") == torch.float32


def test_quantised_weights_are_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path, "llama")
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"] = weights["model.layers.0.mlp.up_proj.weight"].to(torch.int8)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match="of the kind I8; known are F64"):
        load_gpt(tmp_path)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"architectures": "LlamaForCausalLM"}', '{"architectures": ["T5Model"]}']
)
def test_what_is_no_language_model_is_not_taken_for_one(content: str, tmp_path: Path) -> None:
    assert not is_language_model(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert not is_language_model(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BloomForCausalLM"]}')
    assert is_language_model(tmp_path)  # one that is refused by name


def test_weights_in_several_files_are_read(tmp_path: Path) -> None:
    theirs = written(tmp_path / "one", "llama")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    assert torch.equal(scores(load_gpt(tmp_path / "many"), words()), scores(load_gpt(tmp_path / "one"), words()))


@pytest.mark.parametrize(
    ("family", "more", "said"),
    [
        ("llama", {"attention_bias": True}, "says attention_bias: true"),
        ("llama", {"hidden_act": "gelu"}, 'says hidden_act: "gelu"'),
        ("llama", {"sliding_window": 16}, "says sliding_window: 16"),
        ("mistral", {"layer_types": ["sliding_attention"] * 3}, "sliding_window is for 0 of 3 layers"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, 'type "dynamic"'),
    ],
)
def test_what_would_be_another_function_is_refused_by_name(
    family: str, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    written(tmp_path / "theirs", family, **more)
    with pytest.raises(DataError, match=said):
        load_gpt(tmp_path / "theirs")


def test_damage_and_strangers_are_sentences(tmp_path: Path) -> None:
    written(tmp_path, "llama")
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"adapter.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"does not imply: adapter\.weight"):
        load_gpt(tmp_path)
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"no model\.norm\.weight"):
        load_gpt(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"model\.safetensors is damaged"):
        load_gpt(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BloomForCausalLM"]}))
    with pytest.raises(DataError, match="says BloomForCausalLM"):
        load_gpt(tmp_path)
    with pytest.raises(UserError, match="is not empty"):
        write_gpt(GPT(vocab=8, width=8, depth=1, heads=2, mlp_hidden=8), {}, tmp_path, 16)


def test_what_transformers_has_no_name_for_is_not_written(tmp_path: Path) -> None:
    model = GPT(vocab=8, width=8, depth=1, heads=2, mlp_hidden=8, norm="layernorm1p",
                rope=TextRope(long_context=LongContext()))  # fmt: skip
    with pytest.raises(DataError, match="the nearest, LlamaForCausalLM, cannot say norm layernorm1p"):
        write_gpt(model, {}, tmp_path / "out", 16)
    assert not (tmp_path / "out").exists()
