"""Tests that hostile and damaged folders of `.distcp` files are refused: no canary, little memory, a sentence."""

import pickle
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nemo_vfm.core.errors import DataError, NemoVfmError
from nemo_vfm.models.convert import dcp_folder
from nemo_vfm.models.convert.dcp_folder import DcpFolder
from tests.support.dcp_files import Checkpoint, Entry, made, saved
from tests.support.foreign_files import Touch, evil_pickles, with_pickle

TENSORS = {"w": torch.arange(24.0).reshape(6, 4), "b": torch.ones(3)}
MEGABYTE = 1 << 20


def read(folder: Path) -> dict[str, torch.Tensor]:
    with DcpFolder(folder) as found:
        return {name: stored.read() for name, stored in found.tensors.items()}


@pytest.mark.parametrize("attack", [name for name, _ in evil_pickles(Path("canary"))])
@pytest.mark.parametrize("place", ["index", "chunk"])
def test_a_pickle_that_runs_code_makes_no_canary(tmp_path: Path, attack: str, place: str) -> None:
    canary = tmp_path / "canary"
    pickled = dict(evil_pickles(canary))[attack]
    given = made({"b": TENSORS["b"]})
    if place == "chunk":
        given.files["__0_0.distcp"] = with_pickle(saved(TENSORS["b"]), pickled)
        given.chunks[0].length = len(given.files["__0_0.distcp"])
    folder = given.write(tmp_path / "ckpt", pickled if place == "index" else None)
    with pytest.raises(DataError):
        read(folder)
    assert not canary.exists()


def test_code_among_the_classes_of_an_index_is_refused_and_named(tmp_path: Path) -> None:
    index = made(TENSORS).index()
    index.planner_data = {"w": Touch(tmp_path / "canary")}
    with pytest.raises(DataError, match=r"names posix\.system, which is code, not data; nothing was run"):
        read(made(TENSORS).write(tmp_path, pickle.dumps(index)))
    assert not (tmp_path / "canary").exists()


def test_the_classes_of_an_index_are_never_made() -> None:
    """What stands for them has no methods: arguments of a call are not even looked at."""
    evil = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n(X\x01\x00\x00\x00xtR."
    with pytest.raises(DataError, match="a Metadata without values"):
        dcp_folder.read_index(evil)


def entry(**changes: object) -> Callable[[Checkpoint], None]:
    """Change the first chunk of `w`, as the index tells of it."""

    def change(given: Checkpoint) -> None:
        given.chunks[0] = replace(given.chunks[0], **changes)  # type: ignore[arg-type]

    return change


def told(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Callable[[Checkpoint], None]:
    return lambda given: given.tensors.update({name: (dtype, shape)})


def doubled(given: Checkpoint) -> None:
    """Two halves of which the second stands in the place of the first, and the index says so."""
    given.chunks[1] = replace(given.chunks[1], offsets=(1, 0))


def longer(given: Checkpoint) -> None:
    given.tensors["w"] = (torch.float32, (7, 4))


LIES = [
    (entry(sizes=(3, 5)), "is not inside"), (entry(offsets=(4, 0)), "is not inside"),
    (entry(offsets=(0,)), "is not inside"),
    (entry(sizes=(2, 4)), "hold 20 numbers, and its shape .* has 24"), (longer, "hold 24 numbers, and its shape"),
    (doubled, "overlap, at"), (lambda given: given.chunks.pop(0), "hold 12 numbers"),
    (lambda given: given.chunks.append(replace(given.chunks[0], offsets=(0, 0))), "overlap|hold 36|twice"),
    (told("w", torch.float64, (6, 4)), "the index says torch.float64 .*, but found torch.float32"),
    (told("w", torch.int32, (6, 4)), "the index says torch.int32"),
    (told("w", torch.float32, (24,)), "is not inside"), (told("ghost", torch.float32, (2,)), "ghost hold 0 numbers"),
    (told("w", torch.float32, (10**12, 10**12)), "hold 24 numbers"),
    (entry(sizes=(10**6, 10**6)), "is not inside"), (entry(sizes=(-3, 4)), "not a count"),
    (entry(start=1), "to end at 1,578"), (entry(start=-1), "in which bytes"),
    (entry(start=10**15), "to end at 1,000,000"), (entry(length=10), "10 bytes, which are too few"),
    (entry(length=10**12), "in the same bytes|to end at"), (entry(length=2**70), "in the same bytes|to end at"),
    (entry(file="../../etc/passwd"), "the folder has no such .distcp file"),
    (entry(file="/etc/x.distcp"), "no such .distcp"),
    (entry(file=".."), "no such .distcp"), (entry(file="a\0.distcp"), "no such .distcp"), (entry(file=""), "no such"),
    (entry(file="sub/x.distcp"), "no such .distcp"), (entry(file="__7_0.distcp"), "no such .distcp"),
    (lambda given: given.files.pop("__1_0.distcp"), "no such .distcp file"),
    (lambda given: given.files.update({"__1_0.distcp": saved(torch.ones(3, 5))}), "says .*but found .*3, 5|to end at"),
    (lambda given: given.chunks.append(Entry("other", (0,), (3,), "__0_0.distcp", 0, 9)), "a chunk of no tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("lie", "said"), LIES, ids=[f"{n} {said[:30]}" for n, (_, said) in enumerate(LIES)])
def test_an_index_that_lies_is_refused_before_memory_is_taken(
    tmp_path: Path, lie: Callable[[Checkpoint], object], said: str
) -> None:
    given = made({"w": TENSORS["w"]}, (2,))
    lie(given)
    folder = given.write(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=said):
            read(folder)
        assert tracemalloc.get_traced_memory()[1] < 4 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_two_tensors_in_the_same_bytes_are_refused(tmp_path: Path) -> None:
    """Else a file of a megabyte could be a model of a terabyte."""
    given = made({"w": TENSORS["w"], "v": TENSORS["w"]})
    given.chunks[1] = replace(given.chunks[1], start=0)
    with pytest.raises(DataError, match="v and w are in the same bytes"):
        read(given.write(tmp_path))


def test_a_compressed_checkpoint_is_refused(tmp_path: Path) -> None:
    given = made({"b": TENSORS["b"]})
    index = given.index()
    next(iter(index.storage_data.values())).transform_descriptors = ["zstd"]
    with pytest.raises(DataError, match="b is stored through an extension, such as compression"):
        read(given.write(tmp_path, pickle.dumps(index)))


def test_an_index_of_millions_of_instructions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp_folder, "_MAX_INSTRUCTIONS", 20_000)
    with pytest.raises(DataError, match="more than 20,000 instructions"):
        read(made(TENSORS).write(tmp_path, b"\x80\x02" + b"]" * 20_001 + b"."))


def test_ten_thousand_chunks_are_compared_in_no_time(tmp_path: Path) -> None:
    chunks = [dcp_folder.Chunk((n, 0), (1, 4), "x", 0, 0) for n in range(10_000)]
    tall = [dcp_folder.Chunk((0, n), (4, 1), "x", 0, 0) for n in range(10_000)]
    dcp_folder._require_covered("w", (10_000, 4), chunks)
    dcp_folder._require_covered("w", (4, 10_000), tall)
    with pytest.raises(DataError, match="overlap"):
        dcp_folder._require_covered("w", (10_000, 4), [*chunks[:-1], chunks[0]])


def fuzz(folder: Path, cases: int) -> tuple[int, int]:
    """(refused, read all the same) of seeded changes to the index or a file: cuts, and flipped bits."""
    draw, given = random.Random(7), made(TENSORS, (2,))
    given.write(folder)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused = passed = 0
    for case in range(cases):
        name = draw.choice([".metadata", "__0_0.distcp", "__1_0.distcp"])
        data = bytearray(whole[name])
        if case % 4 == 0:
            del data[draw.randrange(len(data)) :]
        elif case % 4 == 1:  # a number of `w`, which is a small part of its file
            name = f"__{draw.randrange(2)}_0.distcp"
            data = bytearray(whole[name])
            numbers = TENSORS["w"][:3] if name.startswith("__0") else TENSORS["w"][3:]
            data[data.index(numbers.numpy().tobytes()) + draw.randrange(48)] ^= 1 << draw.randrange(8)
        else:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        (folder / name).write_bytes(data)
        try:
            found = read(folder)
        except NemoVfmError:
            refused += 1
        else:  # what changed is not read: a zip's time stamps, a path in the index; or a tensor has another name
            passed += 1
            values = [tensor.flatten().tolist() for tensor in found.values()]
            assert sorted(values) == sorted(tensor.flatten().tolist() for tensor in TENSORS.values())
        (folder / name).write_bytes(whole[name])
    return refused, passed


def test_a_flipped_bit_or_a_cut_is_refused_or_changes_no_number(tmp_path: Path) -> None:
    refused, passed = fuzz(tmp_path, 120)
    assert refused > 40 and refused + passed == 120


@pytest.mark.soak
def test_thousands_of_flipped_bits_and_cuts_are_refused_or_change_no_number(tmp_path: Path) -> None:
    assert fuzz(tmp_path, 4000)[0] > 1000
