"""Tests that checkpoints are whole or absent, and that damage is found."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.storage.checkpoint_names import CheckpointRecord, Keep, Mode, surplus
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_manifest, checkpoint_writer


def write(folder: Path, step: int, keep: int | None = None) -> Path:
    weights = {"w": torch.full((3,), float(step))}
    return checkpoint.save(folder, step, {"model": weights, "ema": weights}, {"step": step}, Keep(last=keep))


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    loaded = checkpoint.load(write(tmp_path, 7))
    assert (loaded.step, loaded.state) == (7, {"step": 7})
    assert torch.equal(loaded.groups["ema"]["w"], torch.full((3,), 7.0))


def test_views_that_share_storage_can_be_saved(tmp_path: Path) -> None:
    base = torch.arange(4.0)
    path = checkpoint.save(tmp_path, 1, {"model": {"a": base, "b": base[1:3]}}, {})
    assert torch.equal(checkpoint.load(path).groups["model"]["b"], torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: str) -> None:
    good, bad = write(tmp_path, 1), write(tmp_path, 2)
    file = bad / ("manifest.json" if damage == "manifest" else "model.safetensors")
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
    file.write_bytes(data[: len(data) // 2] if damage in ("truncate", "manifest") else data)
    if damage == "remove":
        file.unlink()
    assert checkpoint.latest(tmp_path) == good
    with pytest.raises(CorruptCheckpoint, match="step-00000002"):
        checkpoint.load(bad)


def test_when_all_are_damaged_it_says_so_instead_of_starting_over(tmp_path: Path) -> None:
    (write(tmp_path, 1) / "model.safetensors").write_bytes(b"")
    with pytest.raises(CorruptCheckpoint, match="None of the 1 checkpoints"):
        checkpoint.latest(tmp_path)


def test_a_half_written_checkpoint_is_not_seen_and_is_cleared_away(tmp_path: Path) -> None:
    leftover = tmp_path / ".step-00000009.123.tmp"
    leftover.mkdir(parents=True)
    assert checkpoint.latest(tmp_path) is None
    write(tmp_path, 1, keep=1)
    assert not leftover.exists()


def test_weights_are_found_in_a_folder_of_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path, step)
    assert torch.equal(checkpoint.load_weights(tmp_path, "ema")["w"], torch.full((3,), 2.0))
    with pytest.raises(UserError, match=r"no average weights; it has ema, model"):
        checkpoint.load_weights(tmp_path, "average")
    with pytest.raises(UserError, match="no checkpoint in"):
        checkpoint.load_weights(tmp_path / "elsewhere", "ema")


def rewrite(path: Path, **changes: object) -> None:
    """Another manifest with a seal that fits it."""
    content = json.loads((path / "manifest.json").read_text()) | changes
    (path / "manifest.json").write_text(json.dumps(content | {"seal": checkpoint_manifest.seal(content)}))


def test_a_checkpoint_of_another_major_version_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 1)
    rewrite(write(tmp_path, 2), schema="nemo_vfm.checkpoint/3.0")
    with pytest.raises(UserError, match=r"step-00000002 was written as version 3 .* reads versions 1 and 2\. Use"):
        checkpoint.latest(tmp_path)


def test_another_minor_version_is_read_and_keys_it_adds_are_passed_over(tmp_path: Path) -> None:
    rewrite(path := write(tmp_path, 1), schema="nemo_vfm.checkpoint/1.7", flavour="vanilla")
    assert checkpoint.latest(tmp_path) == path
    rewrite(path, schema="nemo_vfm.checkpoint/1")
    content = json.loads((path / "manifest.json").read_text())
    oldest = {key: content[key] for key in ("schema", "step", "files", "state")}
    (path / "manifest.json").write_text(json.dumps(oldest))
    assert checkpoint.load(path).state == {"step": 1}, "version 1.0 had no seal, run or metrics"


def test_a_version_that_a_flipped_bit_made_up_is_damage_and_not_a_version(tmp_path: Path) -> None:
    good, bad = write(tmp_path, 1), write(tmp_path, 2)
    text = (bad / "manifest.json").read_text()
    (bad / "manifest.json").write_text(text.replace("nemo_vfm.checkpoint/1.1", "nemo_vfm.checkpoint/4.1"))
    assert checkpoint.latest(tmp_path) == good


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"files": {"../../model.safetensors": {"sha256": "0" * 64, "bytes": 1}}}, "not a file of a checkpoint"),
        ({"files": {"/etc/x.safetensors": {"sha256": "0" * 64, "bytes": 1}}}, "not a file of a checkpoint"),
        ({"files": {"gone.safetensors": {"sha256": "0" * 64, "bytes": 1}}}, "ema.safetensors exists but is not in"),
        ({"files": {}}, "lists no files"),
        ({"files": {"model.safetensors": {"sha256": "0" * 64, "bytes": -1}}}, "the size of model"),
        ({"files": {"model.safetensors": {"sha256": "00", "bytes": 1}}}, "the hash of model"),
        ({"files": [1]}, "lists no files"),
        ({"step": 1}, "it is from step 1"),
        ({"step": "2"}, "its step is not a whole number"),
        ({"step": True}, "its step is not a whole number"),
        ({"metrics": {"val_loss": "low"}}, "a metric is not a number"),
        ({"metrics": [1]}, "manifest.json is damaged"),
        ({"run": 7}, "does not name its run"),
        ({"schema": 7}, "manifest.json is damaged"),
        ({"schema": "nemo_vfm.run/1"}, "its schema is"),
    ],
)
def test_a_manifest_that_says_what_cannot_be_is_refused_though_its_seal_fits(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    rewrite(path := write(tmp_path, 2), **changes)
    with pytest.raises(CorruptCheckpoint, match=said):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "text", ["[1]", "[" * 100_000, '{"a": 1, "a": 2}', "NaN", '{"schema": 1e999}', "\0", "", "9" * 9999]
)
def test_a_manifest_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    ((path := write(tmp_path, 2)) / "manifest.json").write_text(text)
    with pytest.raises(CorruptCheckpoint, match="step-00000002"):
        checkpoint.load(path)


def reseal(path: Path) -> None:
    """Hashes and seal anew, as one who means harm would."""
    files = {f.name: {"sha256": sha256_file(f), "bytes": f.stat().st_size} for f in path.glob("*.safetensors")}
    rewrite(path, files=files)


def test_a_file_of_another_group_step_or_run_is_seen_though_every_hash_fits(tmp_path: Path) -> None:
    mine, older = write(tmp_path / "a", 2), write(tmp_path / "a", 1)
    other = checkpoint.save(
        tmp_path / "b", 2, {"model": {"w": torch.zeros(3)}}, {}, about=checkpoint.CheckpointInfo(run="another")
    )
    for source, said in (
        (mine / "ema.safetensors", "group ema"),
        (older / "model.safetensors", "step 1"),
        (other / "model.safetensors", "run another"),
    ):
        shutil.copyfile(source, mine / "model.safetensors")
        reseal(mine)
        with pytest.raises(CorruptCheckpoint, match=f"belongs to another checkpoint: {said}"):
            checkpoint.load(mine)


def test_a_file_that_the_manifest_does_not_list_is_seen_and_notes_are_not_minded(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    (path / "notes.txt").write_text("the good one")
    assert checkpoint.latest(tmp_path) == path
    shutil.copyfile(path / "model.safetensors", path / "more.safetensors")
    with pytest.raises(CorruptCheckpoint, match=r"more\.safetensors exists but is not in the manifest"):
        checkpoint.load(path)


def test_checkpoints_of_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    for step, run in ((1, "mine"), (2, "theirs")):
        checkpoint.save(tmp_path, step, {"model": {}}, {}, about=checkpoint.CheckpointInfo(run=run))
    with pytest.raises(UserError, match=r"of 2 runs .*step-00000001, step-00000002.* start_from"):
        checkpoint.latest(tmp_path)


class TestRetention:
    @staticmethod
    def save(folder: Path, step: int, keep: Keep, loss: float | None = None, *, permanent: bool = False) -> None:
        metrics = {} if loss is None else {"val_loss": loss}
        checkpoint.save(folder, step, {"model": {}}, {}, keep, checkpoint.CheckpointInfo("r", metrics, permanent))

    def test_the_best_the_newest_and_the_permanent_stay(self, tmp_path: Path) -> None:
        losses = {1: 0.9, 2: 0.2, 3: 0.5, 4: None, 5: 0.6, 6: 0.7}
        for step, loss in losses.items():
            self.save(tmp_path, step, Keep(last=1, best=1), loss, permanent=step == 3)
        assert names(tmp_path) == [2, 3, 6]

    def test_what_is_best_is_read_from_the_checkpoints_after_a_resume(self, tmp_path: Path) -> None:
        self.save(tmp_path, 1, Keep(last=1, best=1), 0.1)
        for step in (2, 3):  # another process, which knows nothing but the folder
            self.save(tmp_path, step, Keep(last=1, best=1), 0.5)
        assert names(tmp_path) == [1, 3]

    def test_damage_to_the_newest_stops_the_purge(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for step in (1, 2):
            self.save(tmp_path, step, Keep())
        close = checkpoint_writer._close

        def rotting(temporary: Path, final: Path, *rest: object) -> None:
            close(temporary, final, *rest)
            (final / "model.safetensors").write_bytes(b"rot")

        monkeypatch.setattr(checkpoint_writer, "_close", rotting)
        self.save(tmp_path, 3, Keep(last=1))
        assert names(tmp_path) == [1, 2, 3]
        assert checkpoint.latest(tmp_path) == tmp_path / "step-00000002"

    def test_what_was_just_written_stays_although_a_damaged_one_of_a_later_step_lies_there(
        self, tmp_path: Path
    ) -> None:
        keep = Keep(last=1, best=1)
        self.save(tmp_path, 1, keep, 0.1)
        self.save(tmp_path, 3, keep, 0.9)
        (tmp_path / "step-00000003" / "model.safetensors").write_bytes(b"rot")
        assert checkpoint.latest(tmp_path) == tmp_path / "step-00000001"
        self.save(tmp_path, 2, keep, 0.5)
        assert checkpoint.latest(tmp_path) == tmp_path / "step-00000002"
        self.save(tmp_path, 3, keep, 0.9)
        assert names(tmp_path) == [1, 3]

    def test_no_link_is_followed_by_deletion_and_a_link_is_not_counted(self, tmp_path: Path) -> None:
        folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
        self.save(elsewhere, 1, Keep())
        (elsewhere / "precious").write_text("x")
        folder.mkdir()
        (folder / "step-00000001").symlink_to(elsewhere / "step-00000001")
        (folder / ".step-00000007.1.tmp").symlink_to(elsewhere)
        self.save(folder, 2, Keep(last=1))
        (folder / "step-00000002" / "link").symlink_to(elsewhere)
        self.save(folder, 3, Keep(last=1))
        assert names(folder) == [1, 3] and names(elsewhere) == [1] and (elsewhere / "precious").is_file()
        shutil.rmtree(folder / "step-00000003")
        assert checkpoint.latest(folder) == folder / "step-00000001", "a checkpoint that a user moved is still read"

    def test_a_link_in_the_place_of_a_checkpoint_is_replaced_and_its_target_stays(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "step-00000001").symlink_to(tmp_path / "elsewhere")
        self.save(tmp_path / "run", 1, Keep())
        assert not list((tmp_path / "elsewhere").iterdir())
        assert checkpoint.latest(tmp_path / "run") and not (tmp_path / "run" / "step-00000001").is_symlink()

    def test_a_folder_of_checkpoints_that_a_user_linked_to_a_larger_disk_is_used(self, tmp_path: Path) -> None:
        (tmp_path / "large").mkdir()
        (tmp_path / "checkpoints").symlink_to(tmp_path / "large")
        for step in (1, 2, 3):
            self.save(tmp_path / "checkpoints", step, Keep(last=2))
        assert names(tmp_path / "large") == [2, 3]

    def test_checkpoints_of_another_run_are_never_deleted(self, tmp_path: Path) -> None:
        checkpoint.save(tmp_path, 1, {"model": {}}, {}, about=checkpoint.CheckpointInfo(run="another"))
        for step in (2, 3):
            self.save(tmp_path, step, Keep(last=1))
        assert names(tmp_path) == [1, 3]


def names(folder: Path) -> list[int]:
    """The steps of all that lies there; a leftover is an error."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("*step-*") if path.name[0] != ".")


class TestFind:
    def test_a_run_a_step_a_folder_and_a_checkpoint(self, tmp_path: Path) -> None:
        for step in (1, 2):
            newest = write(tmp_path / "run" / "train" / "checkpoints", step)
        (tmp_path / "run" / "recipe.yaml").touch()
        (tmp_path / "run" / "manifest.json").touch()
        for path in (tmp_path / "run", tmp_path / "run" / "train", newest.parent, newest):
            assert checkpoint.find(path) == newest

    def test_two_steps_that_train_must_be_told_apart(self, tmp_path: Path) -> None:
        for name in ("base", "tuned"):
            write(tmp_path / name / "checkpoints", 1)
        with pytest.raises(UserError, match=r"name one of .*base, .*tuned"):
            checkpoint.find(tmp_path)


def test_a_disk_that_is_clearly_too_small_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(UserError, match=r"needs .* GB, but the disk of .* has 1e-08 GB free"):
        write(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize(("mode", "best"), [("min", [1, 4]), ("max", [2, 3])])
def test_the_best_are_the_smallest_or_the_largest_as_asked(mode: Mode, best: list[int]) -> None:
    values = {1: 0.1, 2: 0.9, 3: 0.8, 4: 0.2, 5: 0.5}
    records = [CheckpointRecord(Path(str(step)), step, metrics={"val_loss": value}) for step, value in values.items()]
    gone = surplus(records, Keep(last=1, best=2, mode=mode))
    assert [int(path.name) for path in gone] == [step for step in (1, 2, 3, 4) if step not in best]
    equal = [replace(record, metrics={"val_loss": 0.5}) for record in records]
    assert [int(path.name) for path in surplus(equal, Keep(last=1, best=2, mode=mode))] == [1, 2, 3]
