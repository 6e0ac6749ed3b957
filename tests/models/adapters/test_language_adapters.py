"""Tests that an adapter of a language model computes the same here and in PEFT, and is merged into its base."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.cli.conversion.adapter import merge_adapter
from nemo_vfm.core.errors import DataError
from nemo_vfm.models.adapters.adapter_file import write_adapter
from nemo_vfm.models.adapters.load_adapters import AdapterFile, load_adapters
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, AdapterTarget, LowRankAdapter, begin
from nemo_vfm.models.adapters.matrices import extract_adapter
from nemo_vfm.models.convert.gpt_folder import load_gpt
from nemo_vfm.models.gpt import GPT
from tests.support.installed import skip_without
from tests.support.language_models import scores

skip_without("peft", "transformers")

SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
KINDS = {"llama": ("LlamaForCausalLM", "LlamaConfig"), "qwen2": ("Qwen2ForCausalLM", "Qwen2Config")}
EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
WORDS = torch.arange(20)[None]


def made(name: str, *, tied: bool) -> Any:
    import transformers

    kind, config = (getattr(transformers, one) for one in KINDS[name])
    return kind(config(**SIZES, tie_word_embeddings=tied))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of each kind, whose heads share keys."""
    root = tmp_path_factory.mktemp("bases")
    for name in KINDS:
        torch.manual_seed(0)
        model = made(name, tied=False)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        model.save_pretrained(root / name)
    return root


def base(bases: Path, kind: str) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(bases / kind, torch_dtype=torch.float32)


def again_in_peft(model: Any, folder: Path) -> Any:
    import peft

    return peft.PeftModel.from_pretrained(model, folder).eval()


def theirs(bases: Path, kind: str, targets: list[str], **changes: Any) -> Any:
    """A model of PEFT with a nonzero adapter, in which the queries have another rank and alpha."""
    import peft

    patterns = {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.0.self_attn.q_proj": 3.0}}
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM", **(patterns | changes))
    model = peft.get_peft_model(base(bases, kind), config)
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1 * torch.rand_like(parameter))
    return model.eval()


def ours(bases: Path, kind: str, file: Path) -> GPT:
    model = load_gpt(bases / kind).eval()
    load_adapters(model, {"style": AdapterFile(path=file)})
    return model


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = scores(model, WORDS) if isinstance(model, GPT) else model(WORDS).logits
    return found


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / other.std())


@pytest.mark.parametrize(("targets", "changes"), [
    (EVERY, {}), (["q_proj", "v_proj"], {}), (["q_proj", "v_proj"], {"use_dora": True}),
    (EVERY, {"use_rslora": True, "init_lora_weights": "pissa"}),
], ids=["every", "some", "dora", "pissa"])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_of_peft_computes_here_what_it_does_there_and_goes_back(
    bases: Path, tmp_path: Path, kind: str, targets: list[str], changes: dict[str, Any]
) -> None:
    reference = theirs(bases, kind, targets, **changes)
    reference.save_pretrained(tmp_path / "theirs")
    model = ours(bases, kind, tmp_path / "theirs")
    assert far(logits(model), logits(reference)) < 2e-5
    assert far(logits(load_gpt(bases / kind)), logits(reference)) > 0.01, "the adapter must matter"

    (tmp_path / "back").mkdir()
    write_adapter(tmp_path / "back", "peft", extract_adapter(model, "style", our_names=False), model)
    again = again_in_peft(base(bases, kind), tmp_path / "back")
    assert far(logits(again), logits(reference)) < 2e-5

    merge_adapter(tmp_path / "theirs", tmp_path, bases / kind)
    merged = base(tmp_path, ".").eval()
    assert far(logits(merged), logits(reference)) < 2e-5


def test_a_head_that_was_trained_beside_its_adapter_is_refused(bases: Path, tmp_path: Path) -> None:
    """PEFT stores the weight of an adapted head; only a head that is the base's own may be passed over."""
    reference = theirs(bases, "llama", ["lm_head"])
    with torch.no_grad():
        reference.get_output_embeddings().base_layer.weight[3] += 0.01
    reference.save_pretrained(tmp_path)
    with pytest.raises(DataError, match="lm_head has its own weight beside its adapter"):
        ours(bases, "llama", tmp_path)


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_peft_computes_what_an_adapter_trained_here_does(bases: Path, tmp_path: Path, method: Any) -> None:
    targets = {
        "values": AdapterTarget(modules="blocks.*.attention.qkv", rank=3, alpha=2.0, parts=["q", "v"]),
        "mlp": AdapterTarget(modules="blocks.*.mlp.*", rank=2, alpha=4.0),
    }
    model = AdaptedModel(lambda: load_gpt(bases / "llama"), LowRankAdapter(targets=targets, method=method))()
    begin(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * parameter.requires_grad)
    write_adapter(tmp_path, "peft", extract_adapter(model, "own", our_names=False), model)
    found = again_in_peft(base(bases, "llama"), tmp_path)
    assert far(logits(found), logits(model.eval())) < 1e-5


def test_an_adapter_on_a_tied_head_is_refused_and_so_are_styles_of_video_models(bases: Path, tmp_path: Path) -> None:
    reference = theirs(bases, "llama", EVERY)
    reference.save_pretrained(tmp_path / "theirs")
    model = ours(bases, "llama", tmp_path / "theirs")
    with pytest.raises(DataError, match=r"the style diffusers is of video models; write .* as peft or ours"):
        write_adapter(tmp_path, "diffusers", extract_adapter(model, "style", our_names=False), model)
    torch.manual_seed(0)
    made("llama", tied=True).save_pretrained(tmp_path / "llama")
    with pytest.raises(DataError, match="adapts lm_head, which is tied to the embedding in this model"):
        ours(tmp_path, "llama", tmp_path / "theirs")
