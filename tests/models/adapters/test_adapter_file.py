# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that adapters of every style are one function here, in PEFT and in diffusers, and that bad ones are refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("diffusers", reason="needs the extra diffusers")
pytest.importorskip("peft", reason="needs peft")

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.adapters.adapter_file import (
    DIFFUSERS_FILE,
    FILE,
    PEFT_CONFIG,
    PEFT_FILE,
    read_adapter,
    write_adapter,
)
from nemo_vfm.models.adapters.load_adapters import AdapterFile, fingerprint, load_adapters
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, AdapterTarget, LowRankAdapter
from nemo_vfm.models.adapters.matrices import taken_from
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from nemo_vfm.models.dit import DiT
from tests.support.peer_adapters import TARGETS, adapted, output, pipeline, saved_by_diffusers
from tests.support.video_peers import PEERS, inputs, made

STYLES = ["ours", "peft", "diffusers", "comfyui", "cosmos"]
FAMILIES = list(TARGETS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each family: the base, and adapters that PEFT saved."""
    root = tmp_path_factory.mktemp("adapters")
    for family in FAMILIES:
        made(PEERS[family]).save_pretrained(root / family / "base")  # type: ignore[operator]
        for method in ("lora", "dora"):
            adapted(family, dora=method == "dora").save_pretrained(root / family / method)  # type: ignore[operator]
    return root


def ours(folders: Path, family: str, **adapters: AdapterFile) -> DiT:
    """Our model with adapters."""
    model = load_video_model(folders / family / "base").eval()
    load_adapters(model, adapters)
    return model


@torch.no_grad()
def said(model: DiT, family: str) -> torch.Tensor:
    return model(**inputs(PEERS[family]))


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / other.std())


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_of_peft_is_the_same_function_here(folders: Path, family: str, method: str) -> None:
    """Alpha is twice the rank, and of one linear both are others."""
    theirs = output(family, adapted(family, dora=method == "dora"))
    model = ours(folders, family, style=AdapterFile(path=folders / family / method))
    assert far(said(model, family), theirs) < 1e-5
    assert far(said(ours(folders, family), family), theirs) > 0.01, "without it"


def test_half_the_alpha_is_another_function(folders: Path, tmp_path: Path) -> None:
    """What a lost alpha would do; the test above can tell."""
    theirs = output("cosmos 2", adapted("cosmos 2", alpha=4.0))
    assert (
        far(said(ours(folders, "cosmos 2", x=AdapterFile(path=folders / "cosmos 2/lora")), "cosmos 2"), theirs) > 1e-3
    )


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_style_brings_back_every_number(folders: Path, tmp_path: Path, family: str, style, method: str) -> None:
    model = ours(folders, family, style=AdapterFile(path=folders / family / method))
    matrices = taken_from(model, "style", own=style == "ours")
    write_adapter(tmp_path, style, matrices, model)
    found = read_adapter(tmp_path, model)
    assert found.style == style and found.matrices.keys() == matrices.keys()
    for name, one in matrices.items():
        again = found.matrices[name]
        assert again.alpha == one.alpha and torch.equal(again.a, one.a) and torch.equal(again.b, one.b)
        assert (again.magnitude is None) == (one.magnitude is None)
    again = ours(folders, family, style=AdapterFile(path=tmp_path))
    assert torch.equal(said(again, family), said(model, family))


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("style", ["diffusers", "comfyui"])
def test_diffusers_draws_what_we_draw_from_what_we_write(folders: Path, tmp_path: Path, style, method: str) -> None:
    family = "wan 2.1 text"
    if (style, method) == ("comfyui", "dora"):
        pytest.skip("diffusers reads no dora_scale of Wan")
    model = ours(folders, family, style=AdapterFile(path=folders / family / method))
    file = write_adapter(tmp_path, style, taken_from(model, "style", own=False), model)
    whole = pipeline(family)
    whole.load_lora_weights(tmp_path, weight_name=file.name)
    assert far(output(family, whole.transformer), said(model, family)) < 1e-5


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_draws_what_we_draw_from_what_we_write(folders: Path, tmp_path: Path, family: str, method: str) -> None:
    import peft

    model = ours(folders, family, style=AdapterFile(path=folders / family / method))
    write_adapter(tmp_path, "peft", taken_from(model, "style", own=False), model)
    theirs = peft.PeftModel.from_pretrained(made(PEERS[family]), tmp_path).eval()
    assert far(output(family, theirs), said(model, family)) < 1e-5


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_diffusers_saves_is_the_same_function_here(folders: Path, tmp_path: Path, family: str, dora: bool) -> None:
    saved_by_diffusers(family, tmp_path, dora=dora)
    model = ours(folders, family, style=AdapterFile(path=tmp_path / DIFFUSERS_FILE))
    assert far(said(model, family), torch.load(tmp_path / "output.pt")) < 1e-5


def test_a_file_without_an_alpha_takes_the_rank_as_diffusers_does(folders: Path, tmp_path: Path) -> None:
    saved_by_diffusers("wan 2.1 text", tmp_path)
    save_file(load_file(tmp_path / DIFFUSERS_FILE), tmp_path / "bare.safetensors")
    whole = pipeline("wan 2.1 text")
    whole.load_lora_weights(tmp_path, weight_name="bare.safetensors")
    model = ours(folders, "wan 2.1 text", style=AdapterFile(path=tmp_path / "bare.safetensors"))
    assert far(said(model, "wan 2.1 text"), output("wan 2.1 text", whole.transformer)) < 1e-5


def test_two_adapters_add_up_and_strengths_scale_them(folders: Path, tmp_path: Path) -> None:
    family = "wan 2.1 text"
    one = AdapterFile(path=folders / family / "lora", strength=0.25)
    twice = ours(folders, family, first=one, second=one)
    half = ours(folders, family, style=AdapterFile(path=folders / family / "lora", strength=0.5))
    assert far(said(twice, family), said(half, family)) < 1e-5


def changed(folders: Path, tmp_path: Path, change) -> Path:
    """PEFT's folder of Wan, changed."""
    folder = Path(shutil.copytree(folders / "wan 2.1 text/lora", tmp_path / "changed"))
    tensors, config = load_file(folder / PEFT_FILE), json.loads((folder / PEFT_CONFIG).read_text())
    change(tensors, config)
    save_file(tensors, folder / PEFT_FILE)
    (folder / PEFT_CONFIG).write_text(json.dumps(config))
    return folder


def drop(tensors, config, end="lora_B.weight"):
    tensors.pop(next(key for key in tensors if key.endswith(end)))


def rename(tensors, config):
    key = next(iter(tensors))
    tensors[key.replace("blocks.0", "blocks.7")] = tensors.pop(key)
    partner = key.replace("lora_A", "lora_B") if "lora_A" in key else key.replace("lora_B", "lora_A")
    tensors[partner.replace("blocks.0", "blocks.7")] = tensors.pop(partner)


def zero(tensors, config):
    tensors.update({key: torch.zeros_like(tensor) for key, tensor in tensors.items() if "lora_B" in key})


def cut(tensors, config):
    key = next(key for key in tensors if key.endswith("ffn.net.2.lora_B.weight"))
    tensors[key] = tensors[key][:-1].contiguous()


@pytest.mark.parametrize(("change", "reason"), [
    (drop, "has no lora_B for blocks"),
    (lambda tensors, config: drop(tensors, config, "lora_A.weight"), "has no lora_A for blocks"),
    (lambda tensors, config: config.update(r=5), "says rank 5 of blocks.* and its matrices have 4"),
    (lambda tensors, config: config.update(lora_alpha=None), "says lora_alpha None"),
    (lambda tensors, config: config.update(lora_alpha=0), "says lora_alpha 0"),
    (lambda tensors, config: config.update(use_dora=True), "says use_dora: True"),
    (lambda tensors, config: config.update(lora_bias=True), "says lora_bias, which is not read"),
    (lambda tensors, config: config.update(peft_type="LOHA"), "is of the type LOHA; LORA is read"),
    (lambda tensors, config: config.update(rank_pattern={"(a+)+": 3}), "patterns are names of linears here"),
    (lambda tensors, config: tensors.update({"base_model.model.x.bias": torch.ones(2)}), "is no key of an adapter"),
    (rename, "changes blocks.7.* which this Wan does not have; it is an adapter of another model"),
    (cut, "it is an adapter of another model"),
    (zero, "changes none of the 10 linears that it is for"),
])  # fmt: skip
def test_an_adapter_that_does_not_fit_is_refused_in_a_sentence(folders: Path, tmp_path: Path, change, reason) -> None:
    folder = changed(folders, tmp_path, change)
    with pytest.raises(DataError, match=reason):
        ours(folders, "wan 2.1 text", style=AdapterFile(path=folder))


def trained(folders: Path, family: str = "wan 2.1 text") -> DiT:
    """Our own adapter on a base, no zeros."""
    targets = {"all": AdapterTarget(modules="blocks.*.self_attention.*", rank=4, alpha=8.0)}
    model = AdaptedModel(lambda: load_video_model(folders / family / "base"), LowRankAdapter(targets=targets))()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()  # type: ignore[return-value]


def test_our_own_file_knows_its_base(folders: Path, tmp_path: Path) -> None:
    model = trained(folders)
    base = fingerprint(dict(model.named_parameters()))
    write_adapter(tmp_path, "ours", taken_from(model, "own", own=True), model, base=base)
    again = ours(folders, "wan 2.1 text", style=AdapterFile(path=tmp_path / FILE))
    assert torch.equal(said(again, "wan 2.1 text"), said(model, "wan 2.1 text"))
    other = load_video_model(folders / "wan 2.1 text/base")
    with torch.no_grad():
        other.out.weight += 1e-3
    with pytest.raises(DataError, match=f"was trained on weights of the fingerprint {base}"):
        load_adapters(other, {"style": AdapterFile(path=tmp_path)})


def test_one_number_of_another_base_is_another_fingerprint() -> None:
    weights = {"a": torch.randn(300, 300), "b": torch.randn(7)}
    first = fingerprint(weights)
    assert fingerprint({name: tensor.clone() for name, tensor in weights.items()}) == first
    weights["a"][123, 45] += 1e-3
    assert fingerprint(weights) != first


def test_only_the_adapter_is_written(folders: Path, tmp_path: Path) -> None:
    model = trained(folders)
    file = write_adapter(tmp_path, "ours", taken_from(model, "own", own=True), model)
    numbers = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert sum(tensor.numel() for tensor in load_file(file).values()) == numbers


def test_a_style_without_an_alpha_asks_for_one(folders: Path, tmp_path: Path) -> None:
    model = ours(folders, "cosmos 2", style=AdapterFile(path=folders / "cosmos 2/lora"))
    file = write_adapter(tmp_path, "cosmos", taken_from(model, "style", own=False), model)
    save_file(load_file(file), tmp_path / "bare.safetensors")
    with pytest.raises(UserError, match="does not say its alpha, without which it would be used at another strength"):
        ours(folders, "cosmos 2", style=AdapterFile(path=tmp_path / "bare.safetensors"))
    one = ours(folders, "cosmos 2", style=AdapterFile(path=tmp_path / "bare.safetensors", alpha=8.0))
    assert far(said(one, "cosmos 2"), said(ours(folders, "cosmos 2"), "cosmos 2")) > 1e-3


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x80\x04" + 60 * b"."])
def test_a_file_that_is_none_is_refused(folders: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        ours(folders, "wan 2.1 text", style=AdapterFile(path=tmp_path / FILE))
    with pytest.raises(UserError, match="is no file and holds no adapter"):
        ours(folders, "wan 2.1 text", style=AdapterFile(path=tmp_path / "nowhere"))
