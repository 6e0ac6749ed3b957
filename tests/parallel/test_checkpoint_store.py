"""Tests copies of checkpoints in an object store: whole or unseen, kept by the same rule, fit for a resume."""

import os
import signal
from pathlib import Path

import pytest
import torch

from nemo_vfm.core.errors import CorruptCheckpoint, StoreDenied, StoreError, UserError
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.checkpoint_names import Keep
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_store
from nemo_vfm.parallel.checkpoint.checkpoint import CheckpointInfo
from nemo_vfm.parallel.checkpoint.checkpoint_folder import list_checkpoints
from tests.support.object_store import BUCKET, Bucket, Failing

HOME = Address(f"s3://{BUCKET}/copies")
RECIPE = {"_target_": "x", "optimizer": {"lr": 1}, "duration": "4 steps"}


def save(folder: Path, step: int, *, run: str = "one", keep: Keep = Keep(), **about: object) -> Path:
    groups = {name: {"w": torch.full((3, 2), float(step))} for name in ("model", "ema")}
    return checkpoint.save(folder, step, groups, {"step": step}, keep, CheckpointInfo(run, **about))


def steps(bucket: Bucket) -> list[str]:
    return sorted({key.split("/")[1] for key in bucket.names() if key.endswith("manifest.json")})


def test_a_copy_is_the_checkpoint_and_comes_back_where_the_folder_is_gone(bucket: Bucket, tmp_path: Path) -> None:
    checkpoint_store.begin(HOME, tmp_path / "run", RECIPE)
    for step in (1, 2):
        save(tmp_path / "run", step)
        checkpoint_store.copy(tmp_path / "run", HOME, Keep())
    elsewhere = tmp_path / "elsewhere"
    checkpoint_store.begin(HOME, elsewhere, RECIPE)
    assert [path.name for path in list_checkpoints(elsewhere)] == ["step-00000002"]
    found, kept = checkpoint.load(elsewhere / "step-00000002"), checkpoint.load(tmp_path / "run" / "step-00000002")
    assert torch.equal(found.groups["ema"]["w"], kept.groups["ema"]["w"])
    assert (found.step, found.state, found.run) == (kept.step, kept.state, kept.run)
    assert not list(elsewhere.glob(".*"))


def test_a_folder_with_checkpoints_of_its_own_fetches_nothing(bucket: Bucket, tmp_path: Path) -> None:
    save(tmp_path / "a", 5)
    checkpoint_store.copy(tmp_path / "a", HOME, Keep())
    save(tmp_path / "b", 3)
    checkpoint_store.begin(HOME, tmp_path / "b", RECIPE)
    assert [path.name for path in list_checkpoints(tmp_path / "b")] == ["step-00000003"]


def test_the_manifest_is_sent_last(failing: Failing, tmp_path: Path) -> None:
    save(tmp_path, 1)
    checkpoint_store.copy(tmp_path, HOME, Keep())
    sent = [line.rpartition("/")[2] for line in failing.requests if line.startswith("PUT")]
    assert sent[-1] == "manifest.json" and sent.index("ema.safetensors") < sent.index("manifest.json")


def test_the_store_keeps_what_the_rule_keeps_also_of_steps_that_are_gone_here(bucket: Bucket, tmp_path: Path) -> None:
    keep = Keep(last=2, best=1, metric="val_loss")
    for step in range(1, 7):
        save(tmp_path, step, metrics={"val_loss": abs(step - 2.2)}, permanent=step == 1, keep=keep)
        checkpoint_store.copy(tmp_path, HOME, keep)
    assert steps(bucket) == [f"step-0000000{n}" for n in (1, 2, 5, 6)]
    assert not [key for key in bucket.names() if "step-00000003" in key]


@pytest.mark.parametrize("requests", [0, 1, 2])
def test_a_copy_killed_at_any_file_leaves_the_one_before(failing: Failing, tmp_path: Path, requests: int) -> None:
    checkpoint_store.begin(HOME, tmp_path, RECIPE)
    save(tmp_path, 1)
    checkpoint_store.copy(tmp_path, HOME, Keep())
    save(tmp_path, 2)
    child = os.fork()
    if child == 0:
        left, real = [requests], object_store.upload

        def dying(path: Path, address: Address) -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            real(path, address)

        object_store.upload = dying
        try:
            checkpoint_store.copy(tmp_path, HOME, Keep())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    checkpoint_store.begin(HOME, tmp_path / "new", RECIPE)
    assert [path.name for path in list_checkpoints(tmp_path / "new")] == ["step-00000001"]
    checkpoint_store.copy(tmp_path, HOME, Keep())
    assert steps(failing) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "manifest"])
def test_a_damaged_copy_is_passed_over_loudly(
    bucket: Bucket, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint_store.begin(HOME, tmp_path / "a", RECIPE)
    for step in (1, 2):
        save(tmp_path / "a", step)
    checkpoint_store.copy(tmp_path / "a", HOME, Keep())
    key = "copies/step-00000002/" + ("manifest.json" if damage == "manifest" else "ema.safetensors")
    data = bytearray(bucket.get(key))
    data[-1] ^= 1
    if damage == "missing":
        bucket.delete(key)
    else:
        bucket.put(key, bytes(data[:-5] if damage == "cut" else data))
    checkpoint_store.begin(HOME, tmp_path / "b", RECIPE)
    assert [path.name for path in list_checkpoints(tmp_path / "b")] == ["step-00000001"]
    for name in [key for key in bucket.names() if "step-00000001" in key and "manifest" not in key]:
        bucket.put(name, b"damaged")
    with pytest.raises(CorruptCheckpoint, match="None of the 2 checkpoints"):
        checkpoint_store.begin(HOME, tmp_path / "c", RECIPE)
    assert not list_checkpoints(tmp_path / "c") and not list((tmp_path / "c").glob(".*"))


def test_another_runs_copies_are_not_taken_for_ones_own(bucket: Bucket, tmp_path: Path) -> None:
    checkpoint_store.begin(HOME, tmp_path / "a", RECIPE)
    save(tmp_path / "a", 1)
    checkpoint_store.copy(tmp_path / "a", HOME, Keep())
    with pytest.raises(UserError, match=r"\(optimizer.lr: 1 there, 2 here\)"):
        checkpoint_store.begin(HOME, tmp_path / "b", RECIPE | {"optimizer": {"lr": 2}})
    save(tmp_path / "c", 1, run="two")
    with pytest.raises(UserError, match="from a different run"):
        checkpoint_store.begin(HOME, tmp_path / "c", RECIPE)
    checkpoint_store.begin(HOME, tmp_path / "d", RECIPE | {"duration": "8 steps"})
    assert list_checkpoints(tmp_path / "d")


def test_a_checkpoint_that_is_damaged_here_is_passed_over_and_the_others_are_copied(
    bucket: Bucket, tmp_path: Path
) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "step-00000002" / "ema.safetensors").write_bytes(b"rot")
    checkpoint_store.copy(tmp_path, HOME, Keep())
    assert steps(bucket) == ["step-00000001", "step-00000003"]


def test_where_nothing_here_can_be_read_the_copies_are_not_said_to_be_of_another_run(
    bucket: Bucket, tmp_path: Path
) -> None:
    save(tmp_path, 1)
    checkpoint_store.begin(HOME, tmp_path, RECIPE)
    checkpoint_store.copy(tmp_path, HOME, Keep())
    (tmp_path / "step-00000001" / "manifest.json").write_text("rot")
    with pytest.raises(CorruptCheckpoint, match=r"None of .* is complete; .* newest copy"):
        checkpoint_store.begin(HOME, tmp_path, RECIPE)


def test_what_cannot_be_written_is_said_before_the_first_step(failing: Failing, tmp_path: Path) -> None:
    failing.faults["PUT /shelf/copies"] = 403
    with pytest.raises(StoreDenied, match="denies access"):
        checkpoint_store.begin(HOME, tmp_path, RECIPE)
    with pytest.raises(StoreError, match="no bucket nobody"):
        checkpoint_store.begin(Address("s3://nobody/x"), tmp_path, RECIPE)


def test_weights_are_read_from_a_checkpoint_a_folder_of_them_or_a_run(bucket: Bucket, tmp_path: Path) -> None:
    for step in (1, 12):
        path = save(tmp_path / "a", step)
        for file in path.iterdir():
            bucket.put(f"run/checkpoints/{path.name}/{file.name}", file.read_bytes())
    run = Address(f"s3://{BUCKET}/run")
    places = {run: 12.0, run / "checkpoints": 12.0, run / "checkpoints/step-00000001": 1.0}
    for place, value in places.items():
        with checkpoint_store.open_checkpoint(place) as found:
            assert checkpoint.load_weights(found.path, "ema")["w"][0, 0] == value
            assert found.name == f"{run}/checkpoints/step-{int(value):08d}"
        assert not found.path.exists()
    with checkpoint_store.open_checkpoint(tmp_path / "a") as found:
        assert found.path == tmp_path / "a/step-00000012"
    with pytest.raises(UserError, match="There is no checkpoint at"), checkpoint_store.open_checkpoint(run / "none"):
        pass
