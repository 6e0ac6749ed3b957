"""Tests that adapters under native names are read as their programs mean them, and that each network gets its own."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.adapters.adapter_file import PEFT_FILE, write_adapter
from nemo_vfm.models.adapters.load_adapters import AdapterFile, load_adapters
from nemo_vfm.models.adapters.matrices import extract_adapter
from nemo_vfm.models.adapters.native_adapter_keys import native_names
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.noise_experts import NoiseExperts
from tests.support.installed import skip_without
from tests.support.peer_adapters import far, output, pipeline
from tests.support.video_peers import PEERS, inputs, made

skip_without("diffusers", "peft")

WAN, RANK = "wan 2.1 text", 4
BLOCKS = ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]
OUTSIDE = ["proj_out", "text_embedder.linear_1", "text_embedder.linear_2", "time_embedder.linear_1", "time_proj"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native") / "base"
    made(PEERS[WAN]).save_pretrained(folder)  # type: ignore[operator]
    return folder


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter on blocks, head and embeddings in ComfyUI's style, with alphas that are not its ranks."""
    return saved(tmp_path_factory.mktemp("adapter"), base, [*BLOCKS, *OUTSIDE])


def saved(folder: Path, base: Path, targets: list[str], alpha: float = 6.0) -> Path:
    """Write an adapter of PEFT in ComfyUI's style, with the peer's output beside it."""
    import peft

    theirs = peft.get_peft_model(made(PEERS[WAN]), peft.LoraConfig(r=RANK, lora_alpha=alpha, target_modules=targets))
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.rand_like(parameter))
    theirs.save_pretrained(folder)
    torch.save(output(WAN, theirs.eval()), folder / "output.pt")
    model = ours(base, AdapterFile(path=folder / PEFT_FILE))
    file = write_adapter(folder, "comfyui", extract_adapter(model, "style", our_names=False), model)
    return file.rename(folder / "comfyui.safetensors")


def ours(base: Path, file: AdapterFile | None) -> DiT:
    model = load_video_model(base).eval()
    load_adapters(model, {} if file is None else {"style": file})
    return model


@torch.no_grad()
def output_of(model: DiT) -> Tensor:
    return model(**inputs(PEERS[WAN]))


def musubi(key: str) -> str:
    module, _, kind = key.removeprefix("diffusion_model.").partition(".lora_")
    if not kind:
        module, kind = module.removesuffix(".alpha"), ""
    return f"lora_unet_{module.replace('.', '_')}" + (f".lora_{kind}" if kind else ".alpha")


def matrices_by_letter(key: str) -> str:
    return key.replace("lora_down", "lora_A").replace("lora_up", "lora_B")


def diffsynth(key: str) -> str:
    return matrices_by_letter(key).removeprefix("diffusion_model.").replace(".weight", ".default.weight")


PROGRAMS: dict[str, Callable[[str], str]] = {
    "comfyui": str, "letters": matrices_by_letter, "musubi": musubi, "diffsynth": diffsynth,
    "pipeline": lambda key: f"pipe.dit.{diffsynth(key)}",
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_head_and_embeddings_are_read_under_the_names_of_every_program(
    base: Path, adapter: Path, tmp_path: Path, program: str
) -> None:
    renamed = {PROGRAMS[program](key): tensor for key, tensor in load_file(adapter).items()}
    save_file(renamed, tmp_path / "one.safetensors")
    model = ours(base, AdapterFile(path=tmp_path / "one.safetensors"))
    assert far(output_of(model), torch.load(adapter.with_name("output.pt"))) < 1e-5
    assert far(output_of(model), output_of(ours(base, None))) > 0.01, "the adapter must matter"


@pytest.mark.parametrize("program", ["diffsynth", "musubi"])
def test_without_an_alpha_it_is_the_rank(base: Path, tmp_path: Path, program: str) -> None:
    file = saved(tmp_path, base, BLOCKS, alpha=RANK)
    tensors = {key: tensor for key, tensor in load_file(file).items() if not key.endswith(".alpha")}
    save_file({PROGRAMS[program](key): tensor for key, tensor in tensors.items()}, tmp_path / "one.safetensors")
    model = ours(base, AdapterFile(path=tmp_path / "one.safetensors"))
    assert far(output_of(model), torch.load(tmp_path / "output.pt")) < 1e-5


def test_diffusers_reads_a_file_of_musubi_as_it_is_read_here(base: Path, tmp_path: Path) -> None:
    file = saved(tmp_path, base, BLOCKS)
    save_file({musubi(key): tensor for key, tensor in load_file(file).items()}, tmp_path / "one.safetensors")
    whole = pipeline(WAN)
    whole.load_lora_weights(tmp_path, weight_name="one.safetensors")
    model = ours(base, AdapterFile(path=tmp_path / "one.safetensors"))
    assert far(output_of(model), output(WAN, whole.transformer)) < 1e-5


def test_differences_of_weights_and_biases_are_added_with_the_strength(base: Path, tmp_path: Path) -> None:
    """As lightx2v stores what no pair of matrices can: all biases, all norms, and the head's weight."""
    file, strength = saved(tmp_path, base, BLOCKS), 0.5
    names, theirs, differences = native_names(load_video_model(base)), made(PEERS[WAN]), {}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            module, _, kind = name.rpartition(".")
            if kind in ("weight", "bias") and (parameter.ndim == 1 or module == "proj_out"):
                change = 0.1 * torch.randn(parameter.shape, generator=generator)
                differences[f"diffusion_model.{names[module]}.{'diff' if kind == 'weight' else 'diff_b'}"] = change
                parameter += strength * change
    assert len(differences) >= 40
    save_file(load_file(file) | differences, tmp_path / "one.safetensors")
    model = ours(base, AdapterFile(path=tmp_path / "one.safetensors", strength=strength))
    alone = AdapterFile(path=file, strength=strength)
    theirs.save_pretrained(tmp_path / "changed")  # type: ignore[attr-defined]
    assert far(output_of(model), output_of(ours(tmp_path / "changed", alone))) < 1e-5
    assert far(output_of(model), output_of(ours(base, alone))) > 0.01, "the differences must matter"


def test_differences_survive_a_conversion_or_refuse_it(base: Path, adapter: Path, tmp_path: Path) -> None:
    from nemo_vfm.cli.conversion.adapter import convert_adapter

    tensors = load_file(adapter) | {"diffusion_model.head.head.diff_b": torch.ones(16)}
    save_file(tensors, tmp_path / "one.safetensors")
    with pytest.raises(DataError, match=r"also changes 1 weights and biases, such as proj_out.bias.* style peft"):
        convert_adapter(tmp_path / "one.safetensors", tmp_path, "peft", base=base)
    (tmp_path / "out").mkdir()
    convert_adapter(tmp_path / "one.safetensors", tmp_path / "out", "comfyui", base=base)
    again = load_file(tmp_path / "out/adapter.safetensors")
    assert again.keys() == tensors.keys() and all(torch.equal(again[key], tensors[key]) for key in tensors)


@pytest.mark.parametrize("style", ["ours", "peft", "diffusers", "comfyui"])
def test_an_adapter_has_as_many_linears_where_it_is_written_as_where_it_is_loaded(
    base: Path, adapter: Path, tmp_path: Path, style: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from nemo_vfm.cli.conversion.adapter import convert_adapter

    said = convert_adapter(adapter, tmp_path, style, base=base)
    linears = re.search(r"(\d+) linears, ([\d,]+) parameters", said)
    assert linears and f"active on {linears[1]} linears" in caplog.text
    file = next(tmp_path.glob("*.safetensors"))
    matrices = [tensor for name, tensor in load_file(file).items() if not name.endswith(".alpha")]
    assert int(linears[2].replace(",", "")) == sum(tensor.numel() for tensor in matrices)


@pytest.mark.parametrize("peer", PEERS)
def test_every_module_of_a_model_has_a_native_name(peer: str, tmp_path: Path) -> None:
    made(PEERS[peer]).save_pretrained(tmp_path)  # type: ignore[operator]
    model = load_video_model(tmp_path)
    if isinstance(model, DiT) and model.learned_positions is not None:
        with pytest.raises(DataError, match="only Wan and Cosmos-Predict2 and 2"):
            native_names(model)
        return
    names, tensors = native_names(model), load_file(next(tmp_path.glob("*.safetensors")))
    modules = {name.rpartition(".")[0] for name in tensors if name.endswith((".weight", ".bias"))}
    assert modules <= names.keys() and len(set(names.values())) == len(names)


@pytest.mark.parametrize(("style", "key"), [
    ("comfyui", "diffusion_model.blocks.0.cross_attn.k_img.lora_{}.weight"),
    ("musubi", "lora_unet_blocks_0_cross_attn_k_img.lora_{}.weight"),
    ("diffusers", "transformer.blocks.0.attn2.add_k_proj.lora_{}.weight"),
])  # fmt: skip
def test_an_adapter_for_image_to_video_is_refused_as_that_on_a_text_model(
    base: Path, tmp_path: Path, style: str, key: str
) -> None:
    letters = "AB" if style == "diffusers" else ("down", "up")
    sizes = ((RANK, 48), (48, RANK))
    save_file({key.format(one): torch.ones(size) for one, size in zip(letters, sizes, strict=True)}, tmp_path / "x")
    with pytest.raises(DataError, match=r"an image-to-video model of Wan 2\.1, but this one takes no image"):
        ours(base, AdapterFile(path=tmp_path / "x"))


def test_each_of_two_networks_gets_the_adapters_that_are_for_it(base: Path, adapter: Path, tmp_path: Path) -> None:
    other = saved(tmp_path, base, BLOCKS)

    def experts(**files: AdapterFile) -> NoiseExperts:
        model = NoiseExperts(high=ours(base, None), low=ours(base, None), boundary=0.5)
        load_adapters(model, files)
        return model.eval()

    both = experts(
        a=AdapterFile(path=adapter, network="transformer"), b=AdapterFile(path=other, network="transformer_2")
    )
    given = inputs(PEERS[WAN])
    for noise, file in ((0.9, adapter), (0.1, other)):
        at = given | {"noise_B": torch.full_like(given["noise_B"], noise)}
        with torch.no_grad():
            assert torch.equal(both(**at), ours(base, AdapterFile(path=file))(**at))
    with pytest.raises(UserError, match=r"adapters.a: the model has two networks.* set network: transformer \(high\)"):
        experts(a=AdapterFile(path=adapter))
