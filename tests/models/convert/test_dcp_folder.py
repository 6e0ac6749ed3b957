"""Tests that our reader gives the tensors of distributed checkpoints of torch, however they are cut."""

import io
import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.convert.dcp_folder import DcpFolder, checkpoint_in
from tests.support.dcp_files import made
from tests.support.ranks import on_ranks

DRAWN = torch.Generator().manual_seed(0)  # the ranks make the same
TENSORS = {
    "net.a": torch.randn(7, 6, generator=DRAWN), "b": torch.arange(12).reshape(3, 2, 2), "scalar": torch.tensor(3.0),
    "half": torch.randn(8, 3, generator=DRAWN).to(torch.bfloat16), "none": torch.empty(0, 4),
    "eight": torch.arange(4.0).to(torch.float8_e4m3fn), "row": torch.arange(5.0), "yes": torch.tensor([True, False]),
}  # fmt: skip


def same(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    with DcpFolder(folder) as found:
        assert set(found.tensors) == set(expected)
        for name, tensor in expected.items():
            assert found.tensors[name].shape == tuple(tensor.shape), name
            read = found.tensors[name].read()
            assert read.dtype == tensor.dtype and read.shape == tensor.shape and read.is_contiguous(), name
            assert torch.equal(read.float(), tensor.float()), name


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_writes_is_read_and_streams_are_named(tmp_path: Path) -> None:
    dcp.save({"model": dict(TENSORS), "step": 5, "rng": io.BytesIO(b"state")}, checkpoint_id=tmp_path, no_dist=True)
    same(tmp_path, {f"model.{name}": tensor for name, tensor in TENSORS.items()})
    with DcpFolder(tmp_path) as found:
        assert set(found.others) == {"step", "rng"}


@pytest.mark.parametrize("cuts", [(1,), (2,), (3, 2), (1, 3), (7, 6, 2)])
def test_chunks_of_many_files_are_put_together(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    same(made(TENSORS, cuts).write(tmp_path), TENSORS)


def sharded(rank: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    placements: dict[str, Any] = {"net.a": [Shard(0)], "half": [Shard(1)], "b": [Replicate()]}
    state = {
        name: distribute_tensor(TENSORS[name], mesh, place, src_data_rank=None) for name, place in placements.items()
    }
    dcp.save({"model": state, "rank": torch.tensor(dist.get_world_size())}, checkpoint_id=folder)


@pytest.mark.cluster
def test_what_two_ranks_write_is_read(tmp_path: Path) -> None:
    on_ranks(2, sharded, tmp_path)
    assert len(list(tmp_path.glob("*.distcp"))) == 2
    same(tmp_path, {"model.net.a": TENSORS["net.a"], "model.half": TENSORS["half"], "model.b": TENSORS["b"],
                    "rank": torch.tensor(2)})  # fmt: skip


def test_a_checkpoint_of_nemo_is_found_below_its_folder_and_its_other_files_are_named(tmp_path: Path) -> None:
    folder = made({"module.a": torch.ones(2, 3, 4)}, (2,), {"module._extra_state/shard_0_2": b"x"}).write(
        tmp_path / "weights"
    )
    (folder / "common.pt").write_bytes(b"pickle")
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    assert checkpoint_in(tmp_path) == folder
    with DcpFolder(folder) as found:
        assert found.others == ("module._extra_state/shard_0_2", "common.pt")
    with pytest.raises(UserError, match=r"has no \.metadata, so it is not a distributed checkpoint"):
        DcpFolder(tmp_path)


def test_only_the_chunks_of_one_tensor_are_in_memory(tmp_path: Path, monkeypatch) -> None:
    """Each file is opened once, and no storage is kept after its tensor."""
    made({str(n): torch.ones(64, 64) for n in range(20)}, (4,)).write(tmp_path)
    with DcpFolder(tmp_path) as found:
        opened: list[str] = []
        monkeypatch.setattr(
            Path, "open", lambda path, mode, real=Path.open: opened.append(path.name) or real(path, mode)
        )
        for stored in found.tensors.values():
            assert stored.read().sum() == 64 * 64
    assert sorted(opened) == [f"__{n}_0.distcp" for n in range(4)]


def test_an_empty_or_foreign_index_is_refused(tmp_path: Path) -> None:
    for data, said in ((b"", "damaged|no end"), (b"\x80\x04N.", "not one that torch.distributed.checkpoint writes")):
        (tmp_path / ".metadata").write_bytes(data)
        with pytest.raises(DataError, match=said):
            DcpFolder(tmp_path)


def test_the_classes_of_megatron_core_and_of_older_torch_are_known(tmp_path: Path, monkeypatch) -> None:
    """Their index has a class of Megatron-Core on top, and torch's former class for a tensor's properties."""
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties

    name = "megatron.core.dist_checkpointing.strategies.torch"
    top = type("MCoreMetadata", (), {"__module__": name})
    modules = {part: ModuleType(part) for part in (name, "megatron")}
    modules[name].MCoreMetadata = top  # type: ignore[attr-defined]
    for part, module in modules.items():
        monkeypatch.setitem(sys.modules, part, module)
    given = made({"module.decoder.layers.mlp.linear_fc1.weight": torch.arange(24.0).reshape(2, 4, 3)}, (2,))
    theirs = given.index()
    for entry in theirs.state_dict_metadata.values():
        entry.properties = TensorProperties(dtype=torch.float32)
    index = top()
    index.__dict__.update(theirs.__dict__, mcore_data={"module": {"nd_reformulated_orig_global_shape": (2, 4, 3)}})
    folder = given.write(tmp_path, pickle.dumps(index, 4))
    with DcpFolder(folder) as found:
        whole = found.tensors["module.decoder.layers.mlp.linear_fc1.weight"].read()
    assert whole.shape == (2, 4, 3) and whole.flatten().tolist() == list(range(24))
