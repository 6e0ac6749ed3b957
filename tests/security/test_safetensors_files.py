"""Tests that hostile files of safetensors are refused by every reader of other programs' files, in little memory."""

import json
import pickle
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from nemo_vfm.core.errors import DataError, NemoVfmError
from nemo_vfm.models.adapters.adapter_file import read_adapter
from nemo_vfm.models.convert.foreign import opened_tensors
from nemo_vfm.models.convert.video.native_weights import NativeWeights
from nemo_vfm.models.convert.video.transformer_folder import TransformerFolder
from nemo_vfm.models.dit import DiT
from tests.support.foreign_files import Touch, saved
from tests.support.installed import skip_without
from tests.support.native_cosmos import native_state
from tests.support.video_peers import PEERS, made

skip_without("diffusers")
MEGABYTE = 1 << 20


def read_folder(path: Path) -> dict[str, torch.Tensor]:
    with TransformerFolder(path.parent) as weights:
        return dict(weights.items())


def read_native(path: Path) -> dict[str, torch.Tensor]:
    with opened_tensors(path) as given:
        assert given is not None
        return dict(NativeWeights(path, given, stretch=(1, 3, 3)).items())


def read_beside(path: Path) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        model = DiT(in_channels=4, text_dim=16, width=48, depth=2, heads=2, modulation_rank=8)
    found = read_adapter(path, model, alpha=2.0).matrices
    return {f"{name}.{kind}": getattr(one, kind) for name, one in found.items() for kind in "ab"}


READERS: dict[str, tuple[Callable[[Path], dict[str, torch.Tensor]], str]] = {
    "folder": (read_folder, "diffusion_pytorch_model.safetensors"), "native": (read_native, "model.safetensors"),
    "adapter": (read_beside, "adapter.safetensors"),
}  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file for each reader that it takes."""
    made(PEERS["cosmos 2"]).save_pretrained(tmp_path_factory.mktemp("folder"))
    folder = tmp_path_factory.mktemp("read")
    made(PEERS["cosmos 2"]).save_pretrained(folder)
    state = native_state(made(PEERS["cosmos 2"]).state_dict())
    (folder / "model.safetensors").write_bytes(save({k: v for k, v in state.items() if isinstance(v, torch.Tensor)}))
    pairs = {f"transformer.transformer_blocks.{n}.attn1.to_q.lora_{x}.weight": torch.randn(4, 48) if x == "A" else
             torch.randn(48, 4) for n in (0, 1) for x in "AB"}  # fmt: skip
    (folder / "adapter.safetensors").write_bytes(save(pairs))
    return {kind: folder / name for kind, (_, name) in READERS.items()}


@contextmanager
def changed(path: Path, data: bytes) -> Iterator[Path]:
    whole = path.read_bytes()
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.write_bytes(whole)


def with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def first(**changes: object) -> Callable[[bytes], bytes]:
    def change(header: dict[str, Any]) -> None:
        next(entry for name, entry in header.items() if name != "__metadata__" and entry["dtype"] == "F32").update(
            changes
        )

    return lambda data: with_header(data, change)


def overlapping(header: dict[str, Any]) -> None:
    one, other = [entry for name, entry in header.items() if name != "__metadata__"][:2]
    other["data_offsets"] = one["data_offsets"]


def twice(data: bytes) -> bytes:
    """The first name stands twice: which of the two is meant depends on who reads."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = next(name for name in header if name != "__metadata__")
    text = data[8 : 8 + size].rstrip()[:-1] + f",{json.dumps(name)}:{json.dumps(header[name])}}}".encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


ATTACKS: dict[str, Callable[[bytes], bytes]] = {
    "a header of 2^63": lambda data: (2**63).to_bytes(8, "little") + data[8:],
    "a header of 2^64 - 1": lambda data: b"\xff" * 8 + data[8:],
    "a header of a gigabyte": lambda data: (1 << 30).to_bytes(8, "little") + data[8:],
    "a long header": lambda data: with_header(data, lambda header: header.update(__metadata__={"x": "y" * (17 << 20)})),
    "trailing bytes": lambda data: data + b"\0" * 8,
    "a name twice": twice,
    "overlapping": lambda data: with_header(data, overlapping),
    "a negative shape": first(shape=[-48, -48]),
    "a terabyte": first(shape=[1 << 20, 1 << 18]),
    "10^12 numbers in a lie of offsets": first(shape=[10**6, 10**6], data_offsets=[0, 4 * 10**12]),
    "lengths beyond any integer": first(shape=[2**63, 2**63]),
    "another dtype": first(dtype="F64"),
    "an unknown dtype": first(dtype="F128"),
    "offsets backwards": first(data_offsets=[96, 0]),
    "offsets that are texts": first(data_offsets=["0", "96"]),
    "a deep header": lambda data: (200_000).to_bytes(8, "little") + b"[" * 200_000 + data,
    "no header": lambda data: b"",
    "NaN as a length": lambda data: with_header(data, lambda h: next(iter(h.values())).update(shape=[float("nan")])),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_attacked_is_read_when_it_is_honest(honest: dict[str, Path], reader: str) -> None:
    assert READERS[reader][0](honest[reader])


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_header_is_a_sentence_and_takes_no_memory(honest: dict[str, Path], reader: str, attack: str) -> None:
    read, data = READERS[reader][0], ATTACKS[attack](honest[reader].read_bytes())
    with changed(honest[reader], data) as path:
        tracemalloc.start()
        try:
            with pytest.raises(DataError):
                read(path)
            assert tracemalloc.get_traced_memory()[1] < 40 * MEGABYTE
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("way", ["bare", "torch", "after 8 bytes"])
def test_a_pickle_that_is_called_safetensors_is_not_run(
    honest: dict[str, Path], tmp_path: Path, reader: str, way: str
) -> None:
    evil = Touch(tmp_path / "canary")
    pickled = {
        "bare": pickle.dumps(evil),
        "torch": saved({"net": evil}),
        "after 8 bytes": bytes(8) + pickle.dumps(evil),
    }
    with changed(honest[reader], pickled[way]) as path, pytest.raises(DataError):
        READERS[reader][0](path)
    assert not (tmp_path / "canary").exists()


def fuzz(path: Path, read: Callable[[Path], dict[str, torch.Tensor]], cases: int) -> int:
    """How many seeded changes to the header, and cuts, were refused; the others change no number."""
    draw, whole, refused = random.Random(11), path.read_bytes(), 0
    expected = sorted(tensor.double().sum().item() for tensor in read(path).values())
    header = int.from_bytes(whole[:8], "little") + 8
    for case in range(cases):
        data = bytearray(whole)
        if case % 5 == 0:
            del data[draw.choice([0, 1, 8, header, len(data) - 1, draw.randrange(len(data))]) :]
        for _ in range(draw.choice((1, 1, 3))):
            if data:
                data[draw.randrange(min(header, len(data)))] ^= 1 << draw.randrange(8)
        with changed(path, bytes(data)):
            try:
                found = read(path)
            except NemoVfmError:
                refused += 1
            else:
                assert sorted(tensor.double().sum().item() for tensor in found.values()) == expected
    return refused


@pytest.mark.parametrize("reader", ["native", "adapter"])  # the folder's fuzz is in test_transformer_folder.py
def test_a_changed_header_is_refused_or_changes_no_number(honest: dict[str, Path], reader: str) -> None:
    assert fuzz(honest[reader], READERS[reader][0], 60) > 40


@pytest.mark.soak
@pytest.mark.parametrize("reader", READERS)
def test_thousands_of_changed_headers_are_refused_or_change_no_number(honest: dict[str, Path], reader: str) -> None:
    assert fuzz(honest[reader], READERS[reader][0], 2000) > 1200


def test_a_flipped_bit_of_a_weight_is_not_seen_without_a_hash_and_changes_the_fingerprint(
    honest: dict[str, Path],
) -> None:
    """safetensors of others come without hashes, so it cannot be seen. convert.json keeps the hash of what was read."""
    data = bytearray(honest["folder"].read_bytes())
    with TransformerFolder(honest["folder"].parent) as weights:
        before = weights.fingerprint()
    data[-2] ^= 1
    with changed(honest["folder"], bytes(data)), TransformerFolder(honest["folder"].parent) as weights:
        assert weights.fingerprint() != before


def test_an_adapter_of_a_newer_version_is_refused_by_its_version(tmp_path: Path) -> None:
    header = {"nemo_vfm.adapter": json.dumps({"schema": "nemo_vfm.adapter/2", "base": ""})}
    (tmp_path / "adapter.safetensors").write_bytes(save({"blocks.0.mlp.up.lora_A.weight": torch.ones(4, 48)}, header))
    with pytest.raises(DataError, match=r"has schema 'nemo_vfm.adapter/2'; this version reads nemo_vfm.adapter/1"):
        read_beside(tmp_path / "adapter.safetensors")


HOSTILE_CONFIGS = [
    "[" * 100_000, '{"peft_type": "LORA", "r": 4, "r": 8}', json.dumps({"x": "y" * (17 << 20)}), "{", "", "[]",
    json.dumps({"peft_type": "LORA", "r": 10**12, "lora_alpha": 8, "target_modules": ["to_q"]}),
    json.dumps({"peft_type": "LORA", "r": -4, "lora_alpha": 8, "target_modules": ["to_q"]}),
    json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": float("nan"), "target_modules": ["to_q"]}),
    json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "rank_pattern": ["(a+)+$"], "target_modules": ["to_q"]}),
    json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 10**400, "target_modules": ["to_q"]}),
    json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": float("inf"), "target_modules": ["to_q"]}),
    json.dumps({"peft_type": {"_target_": "os.system"}}),
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE_CONFIGS, ids=[text[:40] or "nothing" for text in HOSTILE_CONFIGS])
def test_a_hostile_configuration_of_peft_is_a_sentence(tmp_path: Path, text: str) -> None:
    pairs = {f"base_model.model.transformer_blocks.0.attn1.to_q.lora_{x}.weight": torch.ones(shape)
             for x, shape in (("A", (4, 48)), ("B", (48, 4)))}  # fmt: skip
    (tmp_path / "adapter_model.safetensors").write_bytes(save(pairs))
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(NemoVfmError):
        read_beside(tmp_path)


@pytest.mark.parametrize("style", ["base_model.model.", "transformer.", "net."])
def test_matrices_without_dimensions_are_a_sentence(tmp_path: Path, style: str) -> None:
    pairs = {f"{style}transformer_blocks.0.attn1.to_q.lora_{x}.weight": torch.tensor(1.0) for x in "AB"}
    (tmp_path / "adapter_model.safetensors").write_bytes(save(pairs))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    with pytest.raises(DataError, match=r"with shape \(\); expected two dimensions"):
        read_beside(tmp_path)


def test_matrices_of_comfyui_without_dimensions_are_a_sentence(tmp_path: Path) -> None:
    linear = "diffusion_model.blocks.0.self_attn.q_proj"
    for a, alpha in ((torch.tensor(1.0), torch.tensor(1.0)), (torch.ones(4, 48), torch.ones(3))):
        given = {
            f"{linear}.lora_down.weight": a,
            f"{linear}.lora_up.weight": torch.ones(48, 4),
            f"{linear}.alpha": alpha,
        }
        (tmp_path / "adapter.safetensors").write_bytes(save(given))
        with pytest.raises(DataError, match="expected two dimensions and a single number"):
            read_beside(tmp_path / "adapter.safetensors")
