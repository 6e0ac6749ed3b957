"""Tests that a checkpoint of any layout becomes one safetensors file and back, in the memory of one tensor."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from nemo_vfm.cli.conversion.run_weights import write_one_file
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_one_file
from nemo_vfm.parallel.checkpoint.checkpoint_reader import SavedTensors
from nemo_vfm.parallel.checkpoint.checkpoint_writer import CheckpointInfo
from nemo_vfm.train.warm_start import WarmStart
from tests.parallel.test_checkpoint_ranks import LAYOUTS, model, saving, values
from tests.support.ranks import on_ranks


class Sizes(nn.Module):
    """A scalar, nothing at all, and bfloat16 that no other dtype's alignment fits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.none = nn.Parameter(torch.zeros(0, 4))
        self.odd = nn.Parameter(torch.arange(7.0).to(torch.bfloat16))


def exported(folder: Path, target: Path, group: str | None = None) -> str:
    """What `nemo-vfm convert` does, without the name."""
    target.mkdir()
    return write_one_file(folder, target, group)


@pytest.mark.cluster  # several ranks
@pytest.mark.parametrize("name", ["one", "shard-tensor", "pipeline"])
def test_one_file_holds_what_any_layout_saved_and_begins_another_model(tmp_path: Path, name: str) -> None:
    if LAYOUTS[name][0] == 1:
        saving(0, name, str(tmp_path / "run"))
    else:
        on_ranks(LAYOUTS[name][0], saving, name, str(tmp_path / "run"))
    said = exported(tmp_path / "run", tmp_path / "out")
    assert said == "the model weights of step 3: 14 tensors, 114 numbers; not carried over: optimizer"
    expected = {name.removeprefix("model "): tensor for name, tensor in values(tmp_path / "run").items()}
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert len(found) == 14
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    again = model("one", 0)
    taken = WarmStart(path=tmp_path / "out").load_into(again)
    assert all(torch.equal(tensor, found[name]) for name, tensor in again.state_dict().items())
    assert (taken["step"], taken["weights"]) == (3, "model")


def begun(rank: int, folder: str) -> dict[str, list[float]]:
    """What a model of this rank has that begins with the weights of a file."""
    net = model("shard", rank)
    WarmStart(path=Path(folder)).load_into(net)
    return {name: _whole(tensor).flatten().tolist() for name, tensor in net.state_dict().items()}


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@pytest.mark.cluster  # several ranks
def test_two_ranks_begin_with_a_file_that_one_process_wrote(tmp_path: Path) -> None:
    saving(0, "one", str(tmp_path / "run"))
    exported(tmp_path / "run", tmp_path / "out")
    expected = {
        name: tensor.flatten().tolist() for name, tensor in load_file(tmp_path / "out/model.safetensors").items()
    }
    assert on_ranks(2, begun, str(tmp_path / "out")) == [expected] * 2


def test_every_shape_and_dtype_and_where_it_came_from(tmp_path: Path) -> None:
    net = Sizes()
    groups = {"model": net.state_dict(), "ema": {n: t + 1 for n, t in net.state_dict().items()}}
    checkpoint.save(tmp_path / "a", 5, groups, {}, about=CheckpointInfo("the run"))
    exported(tmp_path / "a", tmp_path / "averages")
    exported(tmp_path / "a", tmp_path / "own", "model")
    for folder, group in (("averages", "ema"), ("own", "model")):
        with safe_open(tmp_path / folder / "model.safetensors", framework="pt") as file:
            assert file.metadata() == {"format": "pt", "group": group, "run": "the run", "step": "5"}
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                assert torch.equal(file.get_tensor(name), groups[group][name])
                assert file.get_tensor(name).dtype == groups[group][name].dtype
        one = checkpoint.open_checkpoint(tmp_path / folder)
        assert (one.step, one.run, list(one.groups), one.path) == (5, "the run", [group], tmp_path / folder)
    about = json.loads((tmp_path / "averages" / "convert.json").read_text())
    assert about["source"]["sha256"] == checkpoint.load(tmp_path / "a/step-00000005").sha256["ema"]
    assert about["not_carried_over"] == ["model"]
    WarmStart(path=tmp_path / "averages" / "model.safetensors", weights="ema").load_into(net)
    assert net.scale.item() == 4.0
    with pytest.raises(UserError, match="holds no model weights; it has ema"):
        WarmStart(path=tmp_path / "averages", weights="model").load_into(net)


def test_a_file_that_was_changed_or_cut_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a", 5, {"model": {"w": torch.ones(100)}}, {})
    exported(tmp_path / "a", tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"!")
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors is damaged; .* the hash in convert\.json"):
        checkpoint.open_checkpoint(tmp_path / "out")
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes(whole[:-10])
    with pytest.raises(CorruptCheckpoint, match=r"alone\.safetensors is not a readable safetensors file"):
        checkpoint.open_checkpoint(alone)


def test_a_group_or_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a", 5, {"model": {"w": torch.ones(1)}}, {})
    with pytest.raises(UserError, match="holds no ema weights; it has model"):
        exported(tmp_path / "a", tmp_path / "out", "ema")
    with pytest.raises(UserError, match="There is no checkpoint in"):
        exported(tmp_path / "out", tmp_path / "none")


def anonymous() -> int:
    """Bytes of this process's own memory; pages of files, which the kernel takes back when it wants, do not count."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.mark.slow  # writes 180 MB twice
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc")
def test_it_takes_the_memory_of_a_tensor_and_not_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, count = 36 << 20, 5  # above 32 MiB malloc gives every piece of memory back at once
    tensors = {f"w{number}": torch.full((size // 4,), float(number)) for number in range(count)}
    checkpoint.save(tmp_path / "a", 1, {"model": tensors}, {})
    del tensors
    saved = checkpoint.open_latest(tmp_path / "a")
    assert saved is not None
    weights, most, blocks = saved.groups["model"], [0], checkpoint_one_file._blocks
    assert isinstance(weights, SavedTensors)

    def watched(*given):  # type: ignore[no-untyped-def]
        for block in blocks(*given):
            most.append(anonymous())
            yield block
            del block

    monkeypatch.setattr(checkpoint_one_file, "_blocks", watched)
    before = anonymous()
    checkpoint_one_file.write(tmp_path / "out.safetensors", weights, {})
    assert len(most) == count + 2
    assert max(most) - before < 1.5 * size
