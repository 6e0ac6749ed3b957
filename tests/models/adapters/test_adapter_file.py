"""Tests that every adapter format gives the same outputs here, in PEFT and in diffusers, and refuses bad files."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

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
from nemo_vfm.models.adapters.matrices import Matrices, extract_adapter
from nemo_vfm.models.adapters.peft_keys import KNOWN, require_known
from nemo_vfm.models.convert.video.transformer_folder import load_video_model
from nemo_vfm.models.dit import DiT
from tests.support.installed import skip_without
from tests.support.peer_adapters import TARGETS, adapted, output, pipeline, saved_by_diffusers
from tests.support.video_peers import PEERS, inputs, made

skip_without("diffusers", "peft")

STYLES = ["ours", "peft", "diffusers", "comfyui", "cosmos"]
FAMILIES = list(TARGETS)
UMASK = os.umask(0o022)
os.umask(UMASK)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model and adapters saved by PEFT, for each family."""
    root = tmp_path_factory.mktemp("adapters")
    for family in FAMILIES:
        made(PEERS[family]).save_pretrained(root / family / "base")  # type: ignore[operator]
        for method in ("lora", "dora"):
            adapted(family, dora=method == "dora").save_pretrained(root / family / method)  # type: ignore[operator]
    return root


def ours(folders: Path, family: str, **adapters: AdapterFile) -> DiT:
    model = load_video_model(folders / family / "base").eval()
    load_adapters(model, adapters)
    return model


@torch.no_grad()
def output_of(model: DiT, family: str) -> torch.Tensor:
    return model(**inputs(PEERS[family]))


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / other.std())


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_of_peft_gives_the_same_output_here(folders: Path, family: str, method: str) -> None:
    """Alpha is twice the rank, and one linear has another rank and alpha."""
    theirs = output(family, adapted(family, dora=method == "dora"))
    model = ours(folders, family, style=AdapterFile(path=folders / family / method))
    assert far(output_of(model, family), theirs) < 1e-5
    assert far(output_of(ours(folders, family), family), theirs) > 0.01, "the adapter must matter"


@pytest.mark.parametrize("changes", [
    {"use_rslora": True}, {"rank_pattern": {"attn1.to_q": 2}, "alpha_pattern": {"attn1.to_k": 3.0, "to_k": 20.0}},
    {"rank_pattern": {"^blocks.1.attn1.to_q": 2}, "alpha_pattern": {"^attn1.to_k": 3.0, "blocks.0.attn1.to_k$": 20.0}},
], ids=["stabilised", "suffixes", "anchors"])  # fmt: skip
def test_scales_and_patterns_are_read_as_peft_reads_them(tmp_path: Path, folders: Path, changes) -> None:
    family = "wan 2.1 text"
    theirs, plain = adapted(family, **changes), {"rank_pattern": {}, "alpha_pattern": {}}
    theirs.save_pretrained(tmp_path)  # type: ignore[operator]
    model = ours(folders, family, style=AdapterFile(path=tmp_path))
    assert far(output_of(model, family), output(family, theirs)) < 1e-5
    assert far(output_of(model, family), output(family, adapted(family, **plain))) > 1e-3, "the change must matter"


@pytest.mark.parametrize("changes", [
    {}, {"use_rslora": True, "dora": True}, {"rank_pattern": {"to_q": 16}, "alpha_pattern": {}},
], ids=["plain", "dora", "wide"])  # fmt: skip
@pytest.mark.parametrize("start", ["pissa", "OLoRA"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_that_took_a_part_out_of_its_base_computes_what_it_does_in_peft(
    tmp_path: Path, folders: Path, family: str, start: str, changes
) -> None:
    theirs = adapted(family, init_lora_weights=start, **changes)
    theirs.save_pretrained(tmp_path)  # type: ignore[operator]
    model = ours(folders, family, style=AdapterFile(path=tmp_path))
    assert far(output_of(model, family), output(family, theirs)) < 2e-5
    assert far(output_of(ours(folders, family), family), output(family, theirs)) > 0.01, "the adapter must matter"

    write_adapter(tmp_path, "ours", extract_adapter(model, "style", our_names=True), model)
    again = ours(folders, family, style=AdapterFile(path=tmp_path / FILE))
    assert torch.equal(output_of(again, family), output_of(model, family)), "written as a plain adapter of the base"


def test_bf16_does_not_round_away_what_was_learned_beside_a_part_of_the_base() -> None:
    """What was learned is a thousandth of the two products that cancel; bf16 has 8 bits."""
    torch.manual_seed(0)
    weight = torch.randn(24, 40)
    u, values, v = torch.linalg.svd(weight, full_matrices=False)
    b, a = u[:, :4] * values[:4].sqrt(), values[:4].sqrt()[:, None] * v[:4]
    learned = b + 1e-3 * torch.randn_like(b)
    found = Matrices(a, learned, alpha=4.0, initial="pissa").on_unchanged_base(weight)
    change, stored = (learned - b) @ a, found.b.bfloat16().float() @ found.a.bfloat16().float()
    assert found.alpha / found.a.shape[0] == 1 and (stored - change).norm() < 0.01 * change.norm()


def test_every_option_of_pefts_lora_is_known() -> None:
    """A version of PEFT with a new option makes this fail: it belongs into one of the lists."""
    import peft

    options = peft.LoraConfig().to_dict()
    require_known("adapter", options)
    assert not options.keys() - KNOWN


def test_unknown_options_are_named_all_at_once_or_said_to_be_off(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataError, match="sets 'turbo', 'gate', which this version does not support"):
        require_known("adapter", {"r": 4, "turbo": True, "gate": {"a": 1}, "later": None})
    require_known("adapter", {"r": 4, "later": None})
    assert "all are null and count as off: later" in caplog.text


def test_half_the_alpha_gives_another_output(folders: Path, tmp_path: Path) -> None:
    """Shows that the test above would detect a lost alpha."""
    theirs = output("cosmos 2", adapted("cosmos 2", alpha=4.0))
    assert (
        far(output_of(ours(folders, "cosmos 2", x=AdapterFile(path=folders / "cosmos 2/lora")), "cosmos 2"), theirs)
        > 1e-3
    )


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_style_preserves_every_value(folders: Path, tmp_path: Path, family: str, style, method: str) -> None:
    model = ours(folders, family, style=AdapterFile(path=folders / family / method))
    matrices = extract_adapter(model, "style", our_names=style == "ours")
    write_adapter(tmp_path, style, matrices, model)
    assert all(path.stat().st_mode & 0o077 == 0o666 & ~UMASK & 0o077 for path in tmp_path.iterdir())
    found = read_adapter(tmp_path, model)
    assert found.style == style and found.matrices.keys() == matrices.keys()
    for name, one in matrices.items():
        again = found.matrices[name]
        assert again.alpha == one.alpha and torch.equal(again.a, one.a) and torch.equal(again.b, one.b)
        assert (again.magnitude is None) == (one.magnitude is None)
    again = ours(folders, family, style=AdapterFile(path=tmp_path))
    assert torch.equal(output_of(again, family), output_of(model, family))


@pytest.mark.parametrize("style", STYLES)
def test_a_given_alpha_stands_in_place_of_the_files_in_every_style(folders: Path, tmp_path: Path, style) -> None:
    model = ours(folders, "cosmos 2", style=AdapterFile(path=folders / "cosmos 2/dora"))
    write_adapter(tmp_path, style, extract_adapter(model, "style", our_names=style == "ours"), model)
    plain, given = read_adapter(tmp_path, model).matrices, read_adapter(tmp_path, model, alpha=5.0).matrices
    assert {one.alpha for one in given.values()} == {5.0} and 5.0 not in {one.alpha for one in plain.values()}
    for name, one in given.items():
        assert torch.equal(one.b, plain[name].b) and torch.equal(one.magnitude, plain[name].magnitude)


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("style", ["diffusers", "comfyui"])
def test_diffusers_gives_our_output_with_our_file(folders: Path, tmp_path: Path, style, method: str) -> None:
    family = "wan 2.1 text"
    if (style, method) == ("comfyui", "dora"):
        pytest.skip("diffusers does not read dora_scale for Wan")
    model = ours(folders, family, style=AdapterFile(path=folders / family / method))
    file = write_adapter(tmp_path, style, extract_adapter(model, "style", our_names=False), model)
    whole = pipeline(family)
    whole.load_lora_weights(tmp_path, weight_name=file.name)
    assert far(output(family, whole.transformer), output_of(model, family)) < 1e-5


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_gives_our_output_with_our_file(folders: Path, tmp_path: Path, family: str, method: str) -> None:
    import peft

    model = ours(folders, family, style=AdapterFile(path=folders / family / method))
    write_adapter(tmp_path, "peft", extract_adapter(model, "style", our_names=False), model)
    theirs = peft.PeftModel.from_pretrained(made(PEERS[family]), tmp_path).eval()
    assert far(output(family, theirs), output_of(model, family)) < 1e-5


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_saved_by_diffusers_gives_the_same_output_here(
    folders: Path, tmp_path: Path, family: str, dora: bool
) -> None:
    saved_by_diffusers(family, tmp_path, dora=dora)
    model = ours(folders, family, style=AdapterFile(path=tmp_path / DIFFUSERS_FILE))
    assert far(output_of(model, family), torch.load(tmp_path / "output.pt")) < 1e-5


def test_without_an_alpha_the_rank_is_used_as_in_diffusers(folders: Path, tmp_path: Path) -> None:
    saved_by_diffusers("wan 2.1 text", tmp_path)
    save_file(load_file(tmp_path / DIFFUSERS_FILE), tmp_path / "bare.safetensors")
    whole = pipeline("wan 2.1 text")
    whole.load_lora_weights(tmp_path, weight_name="bare.safetensors")
    model = ours(folders, "wan 2.1 text", style=AdapterFile(path=tmp_path / "bare.safetensors"))
    assert far(output_of(model, "wan 2.1 text"), output("wan 2.1 text", whole.transformer)) < 1e-5


def test_without_an_alpha_a_comfyui_file_has_its_rank_as_in_diffusers(folders: Path, tmp_path: Path) -> None:
    family = "wan 2.1 text"
    model = ours(folders, family, style=AdapterFile(path=folders / family / "lora"))
    file = write_adapter(tmp_path, "comfyui", extract_adapter(model, "style", our_names=False), model)
    save_file({key: tensor for key, tensor in load_file(file).items() if not key.endswith(".alpha")}, file)
    assert {one.alpha for one in read_adapter(file, model).matrices.values()} == {2.0, 4.0}
    whole = pipeline(family)
    whole.load_lora_weights(tmp_path, weight_name=file.name)
    again = ours(folders, family, style=AdapterFile(path=file))
    assert far(output_of(again, family), output(family, whole.transformer)) < 1e-5


def test_adapters_add_up_and_strengths_scale_them(folders: Path, tmp_path: Path) -> None:
    family = "wan 2.1 text"
    one = AdapterFile(path=folders / family / "lora", strength=0.25)
    twice = ours(folders, family, first=one, second=one)
    half = ours(folders, family, style=AdapterFile(path=folders / family / "lora", strength=0.5))
    assert far(output_of(twice, family), output_of(half, family)) < 1e-5
    against = AdapterFile(path=folders / family / "lora", strength=-0.5)
    none = ours(folders, family, first=one, second=one, third=against)
    assert far(output_of(none, family), output_of(ours(folders, family), family)) < 1e-5


def changed(folders: Path, tmp_path: Path, change) -> Path:
    """Copy PEFT's adapter folder for Wan and modify it."""
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
    (lambda tensors, config: config.update(r=5), "declares rank 5 for blocks.* but its matrices have rank 4"),
    (lambda tensors, config: config.update(lora_alpha=None), "declares lora_alpha None"),
    (lambda tensors, config: config.update(lora_alpha=0), "declares lora_alpha 0"),
    (lambda tensors, config: config.update(use_dora=True), "declares use_dora: True"),
    (lambda tensors, config: config.update(lora_bias=True), "sets lora_bias, which changes the result"),
    (lambda tensors, config: config.update(modules_to_save=["proj_out"]), "sets modules_to_save, which"),
    (lambda tensors, config: config.update(init_lora_weights="pissa_niter_4"), "init_lora_weights pissa_niter_4"),
    (lambda tensors, config: config.update(init_lora_weights="corda"), "path_initial_model_for_weight_conversion"),
    (lambda tensors, config: config.update(init_lora_weights="new"), "init_lora_weights new, which changed"),
    (lambda tensors, config: config.update(peft_type="LOHA"), "peft_type LOHA is not LORA"),
    (lambda tensors, config: config.update(rank_pattern={"(a+)+": 3}), "patterns must be names of linears"),
    (lambda tensors, config: tensors.update({"base_model.model.x.bias": torch.ones(2)}), "is not an adapter key"),
    (rename, "adapts blocks.7.* which this Wan does not have; it is an adapter for another model"),
    (cut, "it is an adapter for another model"),
    (zero, "changes the output of none of its 10 linears"),
])  # fmt: skip
def test_an_invalid_adapter_is_refused_with_the_reason(folders: Path, tmp_path: Path, change, reason) -> None:
    folder = changed(folders, tmp_path, change)
    with pytest.raises(DataError, match=reason):
        ours(folders, "wan 2.1 text", style=AdapterFile(path=folder))


def trained(folders: Path, family: str = "wan 2.1 text") -> DiT:
    targets = {"all": AdapterTarget(modules="blocks.*.self_attention.*", rank=4, alpha=8.0)}
    model = AdaptedModel(lambda: load_video_model(folders / family / "base"), LowRankAdapter(targets=targets))()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()  # type: ignore[return-value]


def test_our_file_is_refused_on_another_base(folders: Path, tmp_path: Path) -> None:
    model = trained(folders)
    base = fingerprint(dict(model.named_parameters()))
    write_adapter(tmp_path, "ours", extract_adapter(model, "own", our_names=True), model, base=base)
    again = ours(folders, "wan 2.1 text", style=AdapterFile(path=tmp_path / FILE))
    assert torch.equal(output_of(again, "wan 2.1 text"), output_of(model, "wan 2.1 text"))
    other = load_video_model(folders / "wan 2.1 text/base")
    with torch.no_grad():
        other.out.weight += 1e-3
    with pytest.raises(DataError, match=f"was trained on weights with fingerprint {base}"):
        load_adapters(other, {"style": AdapterFile(path=tmp_path)})


def test_one_changed_weight_changes_the_fingerprint() -> None:
    weights = {"a": torch.randn(300, 300), "b": torch.randn(7)}
    first = fingerprint(weights)
    assert fingerprint({name: tensor.clone() for name, tensor in weights.items()}) == first
    weights["a"][123, 45] += 1e-3
    assert fingerprint(weights) != first


def test_the_file_contains_only_the_adapter(folders: Path, tmp_path: Path) -> None:
    model = trained(folders)
    file = write_adapter(tmp_path, "ours", extract_adapter(model, "own", our_names=True), model)
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert sum(tensor.numel() for tensor in load_file(file).values()) == count


def test_a_cosmos_file_without_an_alpha_needs_one(folders: Path, tmp_path: Path) -> None:
    model = ours(folders, "cosmos 2", style=AdapterFile(path=folders / "cosmos 2/lora"))
    file = write_adapter(tmp_path, "cosmos", extract_adapter(model, "style", our_names=False), model)
    save_file(load_file(file), tmp_path / "bare.safetensors")
    with pytest.raises(UserError, match="stores no alpha, without which its strength is unknown"):
        ours(folders, "cosmos 2", style=AdapterFile(path=tmp_path / "bare.safetensors"))
    one = ours(folders, "cosmos 2", style=AdapterFile(path=tmp_path / "bare.safetensors", alpha=8.0))
    assert far(output_of(one, "cosmos 2"), output_of(ours(folders, "cosmos 2"), "cosmos 2")) > 1e-3


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x80\x04" + 60 * b"."])
def test_a_file_that_is_not_safetensors_is_refused(folders: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        ours(folders, "wan 2.1 text", style=AdapterFile(path=tmp_path / FILE))
    with pytest.raises(UserError, match="is not a file and contains no adapter"):
        ours(folders, "wan 2.1 text", style=AdapterFile(path=tmp_path / "nowhere"))
