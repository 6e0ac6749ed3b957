"""Tests that background saves report their errors, and that the last good one always loads."""

import os
import resource
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.storage.checkpoint_names import Keep
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_index, checkpoint_manifest, tensor_file
from nemo_vfm.parallel.checkpoint.checkpoint_folder import list_checkpoints
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.checkpoint.checkpoint_saver import Saver
from nemo_vfm.parallel.checkpoint.checkpoint_writer import CheckpointInfo
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.warm_start import WarmStart
from tests.support.ranks import RankFailed, on_ranks

SIZE = 1 << 15  # values of the tensor: 128 KiB, more than any other file of these tests has
KEEP = Keep(last=3)


@contextmanager
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that writes nothing until the event is set."""
    gate, write = threading.Event(), tensor_file.write_blocks

    def late(path: Path, blocks: "Iterator[bytes | memoryview]") -> dict[str, Json]:
        assert gate.wait(30)
        return write(path, blocks)

    monkeypatch.setattr(tensor_file, "write_blocks", late)
    try:
        yield gate
    finally:
        gate.set()


def groups(value: float) -> dict[str, dict[str, Tensor]]:
    return {"model": {"w": torch.full((SIZE,), value)}}


def value(folder: Path, step: int) -> float:
    (only,) = checkpoint.load(folder / f"step-{step:08d}").groups["model"]["w"].unique().tolist()
    return float(only)


def test_the_training_goes_on_before_the_disk_has_it_and_the_file_holds_the_step_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, tensors = Saver(tmp_path), groups(1.0)
    with slow_disk(monkeypatch) as gate:
        saver.save(1, tensors, {}, KEEP, CheckpointInfo())
        tensors["model"]["w"].fill_(2.0)  # the next optimizer step
        assert not list_checkpoints(tmp_path)
        gate.set()
        saver.finish()
    assert value(tmp_path, 1) == 1.0


def test_the_next_save_waits_for_the_one_before_and_takes_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(tmp_path)
    with slow_disk(monkeypatch) as gate:
        saver.save(1, groups(1.0), {}, KEEP, CheckpointInfo())
        place = saver._buffers.room("model", 4 * SIZE, pinned=False).data_ptr()
        threading.Timer(0.2, gate.set).start()
        saver.save(2, groups(2.0), {}, KEEP, CheckpointInfo())
        assert [path.name for path in list_checkpoints(tmp_path)][:1] == ["step-00000001"]
        saver.finish()
    assert (value(tmp_path, 1), value(tmp_path, 2)) == (1.0, 2.0)
    assert saver._buffers.room("model", 4 * SIZE, pinned=False).data_ptr() == place


def test_where_nothing_is_written_in_the_background_save_waits(tmp_path: Path) -> None:
    found = list[float]()
    saver = Saver(tmp_path, asynchronous=False)
    saver.save(1, groups(1.0), {}, KEEP, CheckpointInfo(), then=lambda: found.append(value(tmp_path, 1)))
    assert found == [1.0]


@contextmanager
def full_disk() -> Iterator[None]:
    """A process whose files may have 64 KiB: what is longer fails while it is written, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("way", ["check", "save", "finish"])
def test_an_error_of_the_writer_surfaces_at_the_next_step_the_next_save_or_the_end(tmp_path: Path, way: str) -> None:
    saver = Saver(tmp_path)
    saver.save(1, groups(1.0), {}, KEEP, CheckpointInfo())
    saver.finish()
    with full_disk():
        saver.save(2, groups(2.0), {}, KEEP, CheckpointInfo())
        assert saver._thread is not None
        saver._thread.join()
    calls = {"check": saver.check, "finish": saver.finish,
             "save": lambda: saver.save(3, groups(3.0), {}, KEEP, CheckpointInfo())}  # fmt: skip
    with pytest.raises(
        UserError, match=r"step 2 could not be written to .*File too large.*Earlier checkpoints are untouched"
    ):
        calls[way]()
    saver.finish()  # it is told once
    assert checkpoint.latest(tmp_path) == tmp_path / "step-00000001"
    saver.save(4, groups(4.0), {}, KEEP, CheckpointInfo())  # a disk that was mended
    saver.finish()
    assert value(tmp_path, 4) == 4.0
    assert not list(tmp_path.glob(".*"))


def spread(rank: int, value: float) -> tuple[nn.Module, EMA]:
    """A model over the ranks, each with a half of its weight; and averages of it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(256, 300)  # a weight of 300 KiB: neither rank's half is a small file
    with torch.no_grad():
        model.bias.fill_(value)
        model.weight.copy_(value + torch.arange(300)[:, None].ge(150) / 2)  # a half more on rank 1
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    averages = EMA()
    averages.start(model)
    return model, averages


def saved(model: nn.Module, averages: EMA) -> dict[str, dict[str, Tensor]]:
    return {"model": dict(model.state_dict()), "ema": averages.weights}


def one_full(rank: int, folder: Path) -> list[str]:
    """Three saves, at the second of which rank 1 has no room; what each rank was told, and when."""
    ranks, told = gather_group(), []
    saver = Saver(folder, ranks)
    for step in (1, 2, 3):
        try:
            with full_disk() if step == 2 and rank == 1 else nullcontext():
                saver.save(step, saved(*spread(rank, float(step))), {}, KEEP, CheckpointInfo())
                if saver._thread is not None:
                    saver._thread.join()
                saver.check()  # with several ranks it says nothing: they would stop at different steps
        except UserError as error:
            told.append(f"{step}: {error}")
    saver.finish()
    return told


@pytest.mark.cluster  # several ranks
def test_a_disk_that_is_full_on_one_rank_is_told_on_both_and_loses_nothing(tmp_path: Path) -> None:
    mine, theirs = on_ranks(2, one_full, tmp_path)
    assert len(mine) == len(theirs) == 1
    assert mine == theirs
    assert mine[0].startswith("3: The checkpoint of step 2 could not be written")
    assert "rank 1: File too large" in mine[0]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]
    assert checkpoint.load_weights(tmp_path, "ema")["weight"].unique().tolist() == [1.0, 1.5]
    assert not list(tmp_path.glob(".*"))


def both(rank: int, folder: Path, first: float = 1.0) -> None:
    """Two checkpoints of two ranks, the model of another value than its averages."""
    for step in (1, 2):
        model, averages = spread(rank, first + step)
        averages.weights = {name: tensor * 10 for name, tensor in averages.weights.items()}
        checkpoint.save(
            folder, step, saved(model, averages), {"step": step}, about=CheckpointInfo("a run"), ranks=gather_group()
        )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    on_ranks(2, both, folder)
    return folder


def copied(folder: Path, target: Path) -> Path:
    """Both checkpoints, to be damaged."""
    return Path(shutil.copytree(folder, target / "checkpoints"))


PART = "model-00001-of-00002.safetensors"


@pytest.mark.cluster  # two ranks
def test_a_part_that_is_truncated_swapped_or_gone_is_named_and_the_one_before_is_loaded(
    pair: Path, tmp_path: Path
) -> None:
    for number, damage in enumerate(("truncated", "changed", "of the step before", "of the other rank", "gone")):
        folder = copied(pair, tmp_path / str(number))
        part = folder / "step-00000002" / PART
        other = part.with_name(PART.replace("00001-of", "00000-of"))
        if damage == "truncated":
            part.write_bytes(part.read_bytes()[:-100])
        elif damage == "changed":
            part.write_bytes(part.read_bytes()[:-1] + b"?")
        elif damage == "of the step before":
            part.write_bytes((folder / "step-00000001" / PART).read_bytes())
        elif damage == "of the other rank":
            part.write_bytes(other.read_bytes())
        else:
            part.unlink()
        with pytest.raises(CorruptCheckpoint, match=rf"step-00000002: {PART} is (damaged|missing)"):
            checkpoint.load(part.parent)
        assert checkpoint.latest(folder) == folder / "step-00000001"


@pytest.mark.cluster  # two ranks
def test_a_part_of_another_step_or_rank_is_seen_though_every_hash_and_seal_fits(pair: Path, tmp_path: Path) -> None:
    folder = copied(pair, tmp_path)
    part = folder / "step-00000002" / PART
    part.write_bytes((folder / "step-00000001" / PART).read_bytes())
    sealed_anew(part.parent)
    with pytest.raises(CorruptCheckpoint, match=rf"{PART} belongs to another checkpoint: step 1"):
        checkpoint.load(part.parent)
    index = folder / "step-00000001" / checkpoint_index.NAME
    index.write_text(index.read_text().replace("[[0,[0,0],", "[[0,[1,0],", 1))
    sealed_anew(index.parent)
    with pytest.raises(CorruptCheckpoint, match=r"pieces\.json is damaged \(.* overlap\)"):
        checkpoint.load(index.parent)


def sealed_anew(folder: Path) -> None:
    """A manifest that fits the files as they are: by accident nobody makes one."""
    manifest = checkpoint_manifest.read(folder)
    for name, said in manifest["files"].items():
        said |= {"sha256": sha256_file(folder / name), "bytes": (folder / name).stat().st_size}
    checkpoint_manifest.write(folder, {k: v for k, v in manifest.items() if k not in ("schema", "seal")})


def warm(rank: int, folder: Path) -> tuple[list[float], str]:
    """The weights of a run of two ranks in a new model over two, averaged ones first."""
    model, _ = spread(rank, 0.0)
    said = WarmStart(path=folder).load_into(model)
    return model.state_dict()["weight"].to_local().unique().tolist(), str(said["weights"])


@pytest.mark.cluster  # two ranks
def test_a_model_over_ranks_begins_with_the_averages_of_a_run_over_ranks(pair: Path) -> None:
    assert on_ranks(2, warm, pair) == [([30.0], "ema"), ([35.0], "ema")]


def killed(rank: int, folder: Path) -> None:
    """A good save, and one in which rank 1 dies with half of its file written."""
    saver = Saver(folder, gather_group())
    saver.save(1, saved(*spread(rank, 1.0)), {}, KEEP, CheckpointInfo())
    saver.finish()
    if rank == 1:
        write = tensor_file.write_blocks

        def half(path: Path, blocks: "Iterator[bytes | memoryview]") -> dict[str, Json]:
            found = b"".join(map(bytes, blocks))
            write(path, [found[: len(found) // 2]])
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        tensor_file.write_blocks = half  # the process ends with it
    saver.save(2, saved(*spread(rank, 2.0)), {}, KEEP, CheckpointInfo())
    saver.finish()


# The last one: the next file that needs ranks starts them anew.
@pytest.mark.cluster  # several ranks
def test_a_rank_that_is_killed_in_the_middle_of_a_save_leaves_the_one_before(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"(?s)rank 0: .*LostRank.*read by all ranks.*rank 1: its process was killed"):
        on_ranks(2, killed, tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]
    assert checkpoint.load_weights(tmp_path, "model")["weight"].unique().tolist() == [1.0, 1.5]
    checkpoint.save(tmp_path, 3, groups(3.0), {}, keep=Keep(last=1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
