"""Tests that malicious tensor files give an error within time and memory limits."""

import json
import random
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_manifest, tensor_file

GOOD = {
    "__metadata__": {"group": "model"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "I64", "shape": [2], "data_offsets": [24, 40]},
    "c": {"dtype": "BF16", "shape": [0, 7], "data_offsets": [40, 40]},
}
BODY = bytes(range(40))


def packed(header: object, body: bytes = BODY, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def changed(name: str, **entry: object) -> dict[str, object]:
    return GOOD | {name: {**GOOD[name], **entry}}


def read(folder: Path, data: bytes) -> dict[str, torch.Tensor]:
    (folder / "x.safetensors").write_bytes(data)
    return tensor_file.read(folder / "x.safetensors")


def test_a_good_file_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, packed(GOOD))
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"a": (2, 3), "b": (2,), "c": (0, 7)}
    assert found["a"].flatten().view(torch.uint8).tolist() == list(range(24))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "claims a header"),
    "seven bytes": (b"\0" * 7, "0 bytes|7 bytes"),
    "header of 2^63": (packed(GOOD, length=2**63), "claims a header of 9223372036854775808"),
    "header of 2^64-1": (packed(GOOD, length=2**64 - 1), "claims a header"),
    "header longer than the file": (packed(GOOD, length=10_000), "claims a header"),
    "a name twice": (packed(b'{"a": {}, "a": {}}'), "it has 'a' twice"),
    "a key of an entry twice": (
        packed(b'{"a": {"dtype": "U8", "dtype": "U8", "shape": [40], "data_offsets": [0, 40]}}'),
        "it has 'dtype' twice",
    ),
    "a list": (packed([1]), "not a mapping"),
    "no JSON": (packed(b"{"), "not a readable"),
    "no UTF-8": (packed(b'{"\xff": 1}'), "not a readable"),
    "deep": (packed(b"[" * 200_000), "not a readable"),
    "a number of 5,000 digits": (packed(b'{"a": ' + b"9" * 5000 + b"}"), "not a readable"),
    "metadata that is not text": (packed(GOOD | {"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata that is a list": (packed(GOOD | {"__metadata__": [1]}), "__metadata__"),
    "overlap": (packed(changed("b", data_offsets=[16, 32])), "overlap"),
    "the same place twice": (packed(GOOD | {"d": GOOD["b"]}), "overlap"),
    "a gap": (packed(changed("a", shape=[5], data_offsets=[0, 20])), "leave gaps"),
    "beyond the end": (packed(changed("b", shape=[200], data_offsets=[24, 1624])), "do not end with the file"),
    "bytes left over": (packed(GOOD, BODY + b"more"), "do not end with the file"),
    "cut short": (packed(GOOD, BODY[:-1]), "do not end with the file"),
    "backwards": (packed(changed("b", data_offsets=[40, 24])), "claims"),
    "negative shape": (packed(changed("a", shape=[-2, -3])), "impossible shape"),
    "negative place": (packed(changed("a", data_offsets=[-24, 0])), "impossible shape"),
    "a fraction": (packed(changed("a", shape=[2.0, 3])), "impossible shape"),
    "true": (packed(changed("b", shape=[True, 2])), "impossible shape"),
    "a text as place": (packed(changed("a", data_offsets=["0", "24"])), "impossible shape"),
    "three places": (packed(changed("a", data_offsets=[0, 12, 24])), "not a readable"),
    "a shape that is a mapping": (packed(changed("a", shape={"2": 3})), "impossible shape"),
    "a thousand dimensions": (packed(changed("b", shape=[1] * 1000)), "impossible shape"),
    "another dtype": (packed(changed("a", dtype="F64")), "claims"),
    "an unknown dtype": (packed(changed("a", dtype="Q7")), "unknown dtype"),
    "a dtype that is a list": (packed(changed("a", dtype=["F32"])), "not a readable"),
    "no dtype": (packed(GOOD | {"a": {"shape": [6], "data_offsets": [0, 24]}}), "not a readable"),
    "an entry that is a number": (packed(GOOD | {"a": 1}), "not a readable"),
    "a terabyte": (packed(changed("a", shape=[2**38], data_offsets=[0, 2**40])), "overlap|gaps|end"),
    "10^12 values in 24 bytes": (packed(changed("a", shape=[10**6, 10**6])), "claims"),
    "2^200 values": (packed(changed("a", shape=[2**62, 2**62, 2**62])), "impossible shape"),
    "nothing, but 2^62 times": (packed(changed("c", shape=[0, 2**62, 2**62])), "impossible shape"),
    "values that wrap around to 24": (packed(changed("a", shape=[2**62 + 6, 4])), "impossible shape"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    data, said = HOSTILE[name]
    with pytest.raises(CorruptCheckpoint, match=said):
        read(tmp_path, data)


@pytest.mark.parametrize("claimed", [10**9, 2**40])
def test_a_header_of_a_gigabyte_is_not_read(tmp_path: Path, claimed: int) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(struct.pack("<Q", claimed))
    with file.open("r+b") as opened:
        opened.truncate(2 * 10**9)  # as a hole: it takes no space
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptCheckpoint, match=f"claims a header of {claimed}"):
        tensor_file.read(file)
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_hostile_file_with_a_manifest_that_fits_it_is_refused_and_the_one_before_loads(tmp_path: Path) -> None:
    good = checkpoint.save(tmp_path, 1, {"model": {"w": torch.ones(3)}}, {})
    bad = checkpoint.save(tmp_path, 2, {"model": {"w": torch.ones(3)}}, {})
    for name, (data, _) in HOSTILE.items():
        (bad / "model.safetensors").write_bytes(data)
        manifest = json.loads((bad / "manifest.json").read_text())
        sha256 = sha256_file(bad / "model.safetensors")
        manifest["files"]["model.safetensors"] = {"sha256": sha256, "bytes": len(data)}
        (bad / "manifest.json").write_text(json.dumps(manifest | {"seal": checkpoint_manifest.seal(manifest)}))
        with pytest.raises(CorruptCheckpoint):
            checkpoint.load(bad)
        assert checkpoint.latest(tmp_path) == good, name


NUMBERS = [-1, 0, 1, 3, 24, 40, 41, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 0.5, None, True, "1", [], {}]


def _any_header(rng: random.Random) -> bytes:
    header: dict[str, object] = json.loads(json.dumps(GOOD))
    for _ in range(rng.randint(1, 3)):
        entry = header[rng.choice("abc")]
        if not isinstance(entry, dict):
            continue
        key = rng.choice(["dtype", "shape", "data_offsets", rng.choice("xyz")])
        inner = entry.get(key)
        if isinstance(inner, list) and inner and rng.random() < 0.8:
            inner[rng.randrange(len(inner))] = rng.choice(NUMBERS)
        else:
            entry[key] = rng.choice([*NUMBERS, "F32", "I8", "BOOL", "F4", "f32"])
    return packed(header)


def _any_bytes(rng: random.Random) -> bytes:
    data = bytearray(packed(GOOD))
    for _ in range(rng.randint(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def _any_length(rng: random.Random) -> bytes:
    return packed(GOOD, length=rng.choice([rng.getrandbits(64), rng.randrange(400), 2**63, 0]))


def _any_cut(rng: random.Random) -> bytes:
    data = packed(GOOD)
    place = rng.randrange(len(data))
    return data[:place] + rng.choice([b"", rng.randbytes(rng.randint(1, 50)), data[place:] * 2])


def _fuzz(folder: Path, cases: int) -> None:
    """Every case is read whole and as it says, or refused; nothing else is raised, and little memory is taken."""
    rng, read_well = random.Random(13), 0
    kinds: list[Callable[[random.Random], bytes]] = [_any_header, _any_bytes, _any_length, _any_cut]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(cases):
        data = kinds[number % len(kinds)](rng)
        try:
            found = read(folder, data)
        except CorruptCheckpoint:
            continue
        read_well += 1
        assert sum(tensor.numel() * tensor.element_size() for tensor in found.values()) < len(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert time.monotonic() - began < max(10, cases / 20)
    assert read_well < cases / 2, "most of these should be wrong"


def test_sixty_mutations_are_read_or_refused(tmp_path: Path) -> None:
    _fuzz(tmp_path, 60)


@pytest.mark.soak
def test_four_thousand_mutations_are_read_or_refused(tmp_path: Path) -> None:
    _fuzz(tmp_path, 4000)
