"""Tests that any layout loads what another saved, value by value, and that all ranks see damage at once."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.parallel.apply.local_shard import local_storage
from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_pieces, checkpoint_reader
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from tests.support.combinations import cases
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

#: Layouts by name: (ranks, of them tensor parallel, pipeline stages).
LAYOUTS = {
    "one": (1, 1, 1), "shard": (2, 1, 1), "tensor": (2, 2, 1), "pipeline": (2, 1, 2), "shard3": (3, 1, 1),
    "shard-tensor": (4, 2, 1), "hybrid": (4, 1, 1), "pipeline-shard": (4, 1, 2),
}  # fmt: skip


class Net(nn.Module):
    """Two linears of which no size can be divided by the number of ranks, a norm that all hold, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 7), nn.Linear(7, 3, bias=False)
        self.norm = nn.LayerNorm(3)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.tensor(0, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(torch.tanh(self.up(x)))) * self.scale


def model(name: str, rank: int) -> nn.Module:
    """Two blocks with the same weights in every layout, laid out so; under pipeline this rank's own."""
    torch.manual_seed(11)
    whole = nn.ModuleDict({"a": Net(), "b": Net()})
    ranks, tensor, stages = LAYOUTS[name]
    if stages > 1:
        del whole["ab"[1 - rank * stages // ranks]]
    if ranks == 1 or ranks == stages:
        return whole
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    shapes = {"hybrid": ((2, 2), ("replicate", "shard")), "pipeline-shard": ((2, 2), ("stage", "shard"))}
    shape, names = shapes.get(name, ((ranks // tensor, tensor), ("shard", "tensor")))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for block in whole.values():
        if tensor > 1:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if ranks > tensor:
            fully_shard(block, mesh=mesh if name == "hybrid" else mesh["shard"])
    return whole


def train(net: nn.Module, optimizer: torch.optim.Optimizer, first: int, steps: int) -> None:
    """Steps whose gradients are a function of the step and the weights' own values, so that no layout changes them."""
    for step in range(first, first + steps):
        for parameter in net.parameters():
            parameter.grad = torch.sin(parameter.detach() * (step + 1))
        optimizer.step()
        for _, buffer in net.named_buffers():
            buffer.add_(1)


def groups(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    parameters = dict(net.named_parameters())
    state = {name: dict(optimizer.state[parameter]) for name, parameter in parameters.items()}
    optimizer = {f"{name}/{key}": checkpoint_pieces.in_layout_of(value, parameters[name])
                 for name, values in state.items() for key, value in values.items()}  # fmt: skip
    return {"model": net.state_dict(), "optimizer": optimizer}


def restore(net: nn.Module, optimizer: torch.optim.Optimizer, saved: checkpoint.Checkpoint) -> None:
    fill(net.state_dict(), saved.groups["model"], gather_group())
    parameters = dict(net.named_parameters())
    for name, state in checkpoint_reader.restore_state(saved.groups["optimizer"], parameters, gather_group()).items():
        for key, value in state.items():
            optimizer.state[parameters[name]][key] = checkpoint_pieces.in_layout_of(value, parameters[name])


def adam(net: nn.Module) -> torch.optim.Optimizer:
    """With a step count, whose sharing between parameters would be seen at the second step."""
    return torch.optim.AdamW(net.parameters(), lr=0.1, foreach=False)


def saving(rank: int, name: str, folder: str, steps: int = 3) -> str:
    """Train a little in one layout, and save."""
    net = model(name, rank)
    optimizer = adam(net)
    train(net, optimizer, 0, steps)
    return str(checkpoint.save(Path(folder), steps, groups(net, optimizer), {"step": steps}, ranks=gather_group()))


def going_on(rank: int, name: str, folder: str, out: str) -> None:
    """Load in another layout, take three steps more, and save."""
    net = model(name, rank)
    for tensor in net.state_dict().values():
        local_storage(tensor).zero_()
    optimizer = adam(net)
    saved = checkpoint.open_latest(Path(folder), gather_group())
    assert saved is not None
    restore(net, optimizer, saved)
    train(net, optimizer, saved.step, 3)
    checkpoint.save(Path(out), 6, groups(net, optimizer), {"step": 6}, ranks=gather_group())


def values(folder: Path) -> dict[str, Tensor]:
    """All of the newest checkpoint, whole."""
    saved = checkpoint.open_latest(folder)
    assert saved is not None
    return {f"{group} {name}": found[name] for group, found in saved.groups.items() for name in found}


def same(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    """Every name and every bit."""
    return one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Tensor]]:
    """One process that was never interrupted, after 3 and after 6 steps."""
    folder = tmp_path_factory.mktemp("reference")
    saving(0, "one", str(folder / "3"))
    saving(0, "one", str(folder / "6"), 6)
    return {steps: values(folder / str(steps)) for steps in (3, 6)}


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "one"])
def test_what_a_layout_saves_is_what_one_process_saves(
    tmp_path: Path, reference: dict[int, dict[str, Tensor]], name: str
) -> None:
    on_ranks(LAYOUTS[name][0], saving, name, str(tmp_path))
    assert same(values(tmp_path), reference[3])
    assert len(reference[3]) == 2 * (7 + 3 * 6)


PAIRS = [("shard", "one"), ("one", "shard"), ("shard-tensor", "tensor"), ("tensor", "pipeline-shard"),
         ("pipeline", "shard3"), ("hybrid", "pipeline"), ("shard3", "shard-tensor")]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), cases(PAIRS, PAIRS[3:]))
def test_any_layout_goes_on_from_any_other_as_if_never_interrupted(
    tmp_path: Path, reference: dict[int, dict[str, Tensor]], source: str, target: str
) -> None:
    on_ranks(LAYOUTS[source][0], saving, source, str(tmp_path / "a"))
    on_ranks(LAYOUTS[target][0], going_on, target, str(tmp_path / "a"), str(tmp_path / "b"))
    assert same(values(tmp_path / "b"), reference[6])
