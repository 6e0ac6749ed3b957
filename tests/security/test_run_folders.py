"""Tests that run folders survive kills, full and failing disks, damage and links, and can be resumed."""

import errno
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import torch

from nemo_vfm.core import lease_registry, log
from nemo_vfm.core.errors import CorruptCheckpoint, RunFolderError, UserError
from nemo_vfm.core.storage.checkpoint_names import Keep
from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_snapshot, tensor_file
from nemo_vfm.parallel.checkpoint.checkpoint_folder import list_checkpoints
from nemo_vfm.runtime import run_folder
from nemo_vfm.runtime.run_folder import Status, open_folder
from tests.support import parts
from tests.support.faulty_disk import READ_ONLY, Disk, can_mount, fill, in_a_copy, mount

KEEP = Keep(last=1, best=1)
LOSSES = {1: 0.1, 2: 0.5, 3: 0.6, 4: 0.7, 5: 0.8}


def save(folder: Path, step: int, keep: Keep = KEEP) -> None:
    """A checkpoint of three groups that hold its step."""
    groups = {name: {"w": torch.full((5,), float(step))} for name in ("model", "ema", "optimizer")}
    checkpoint.save(
        folder, step, groups, {"step": step}, keep, checkpoint.CheckpointInfo("r", {"val_loss": LOSSES[step]})
    )


def read(folder: Path) -> int:
    """The step of what a resume would load, all of it read."""
    found = checkpoint.latest(folder)
    assert found is not None
    loaded = checkpoint.load(found)
    assert all(torch.equal(group["w"], torch.full((5,), float(loaded.step))) for group in loaded.groups.values())
    return loaded.step


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Checkpoints 1 (the best), 2 and 3."""
    for step in (1, 2, 3):
        save(tmp_path / "three", step, Keep())
    return tmp_path / "three"


def calls(three: Path) -> int:
    """How often a save and its purge touch names."""
    shutil.copytree(three, folder := three.with_name("counted"))
    with Disk().failing() as disk:
        save(folder, 4)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000004"]
    assert disk.count > 20
    return disk.count


@pytest.mark.parametrize("fault", ["die", "EIO"])
def test_whatever_call_of_a_save_or_purge_fails_the_newest_or_the_one_before_loads(three: Path, fault: str) -> None:
    seen = set()
    for number in range(calls(three)):
        shutil.copytree(three, folder := three.with_name(f"{fault}-{number}"))

        def work(folder: Path = folder, number: int = number) -> int:
            with Disk(number, fault).failing():  # type: ignore[arg-type]
                try:
                    save(folder, 4)
                except UserError as error:
                    assert "Earlier checkpoints are untouched" in str(error)
                    return 2
            return 0

        status = in_a_copy(work)
        assert status in ((-9,) if fault == "die" else (0, 2)), f"call {number}"
        seen.add(step := read(folder))
        assert step in (3, 4) and (step == 4 or status != 0)
        assert (folder / "step-00000001").is_dir(), "the best one stays"
        save(folder, 5)
        assert sorted(p.name for p in folder.iterdir()) == ["step-00000001", "step-00000005"], "leftovers are cleared"
        shutil.rmtree(folder)
    assert seen == {3, 4}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [8, pytest.param(60, marks=pytest.mark.soak)])
def test_kills_at_any_moment_leave_a_checkpoint_that_loads_and_no_step_backwards(tmp_path: Path, kills: int) -> None:
    """The clock decides where each falls: mostly inside the writing and hashing of a few megabytes."""
    moments, newest = random.Random(17), 0

    def work(first: int) -> None:
        for step in count(first):
            # Small ones: a large one would be filled by threads, which a copy of a process does not have.
            tensors = {str(number): torch.full((10_000,), float(step)) for number in range(40)}
            groups = {"model": tensors, "ema": tensors}
            checkpoint.save(tmp_path, step, groups, {"step": step}, Keep(last=2), checkpoint.CheckpointInfo("r"))

    for _ in range(kills):
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                work(newest + 1)
            os._exit(99)
        until = time.monotonic() + 20
        while max((int(path.name[5:]) for path in list_checkpoints(tmp_path)), default=0) <= newest:
            if time.monotonic() > until:
                break
            time.sleep(0.002)  # one is written: the kill falls into a later one
        time.sleep(moments.uniform(0, 0.1))
        os.kill(child, 9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
        found = checkpoint.latest(tmp_path)
        assert found is not None
        loaded = checkpoint.load(found)
        assert loaded.step > newest
        assert all(tensor[0] == tensor[-1] == loaded.step for tensor in loaded.groups["ema"].values())
        newest = loaded.step


@pytest.mark.slow
def test_whatever_call_of_a_start_is_the_last_one_the_next_start_works(tmp_path: Path) -> None:
    recipe, longer = "_target_: x\nduration: 4 steps\n", "_target_: x\nduration: 6 steps\n"

    def work(folder: Path, text: str, number: int) -> int:
        with Disk(number, "die").failing() as disk, open_folder(folder, text, 0):
            return disk.count

    counted = in_a_copy(lambda: work(tmp_path / "counted", recipe, -1))
    assert 5 < counted < 50
    for number in range(counted):
        assert in_a_copy(lambda n=number: work(tmp_path / str(n), recipe, n)) == -9
        with open_folder(tmp_path / str(number), recipe, 0):
            pass
        in_a_copy(lambda n=number: work(tmp_path / str(n), longer, n))
        with open_folder(tmp_path / str(number), longer, 0) as run:
            assert run.resume and (run.folder / "recipe.yaml").read_text() == longer
            assert json.loads((run.folder / "manifest.json").read_text())["changed"]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was said loudly."""
    said: list[str] = []
    monkeypatch.setattr(log, "warn", said.append)
    return said


def damaged(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Cut short at many places, and with one bit turned at many others."""
    size = len(data)
    for cut in sorted({0, 1, 7, 8, 9, size // 4, size // 2, size - 8, size - 2, size - 1}):
        yield data[:cut]
    for _ in range(200):
        place = rng.randrange(size * 8)
        yield data[: place // 8] + bytes([data[place // 8] ^ 1 << place % 8]) + data[place // 8 + 1 :]
    yield data + b"\0"


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "ema.safetensors", "optimizer.safetensors"])
def test_every_cut_and_every_flipped_bit_is_seen_and_the_one_before_loads(
    three: Path, warnings: list[str], name: str
) -> None:
    file = three / "step-00000003" / name
    whole = file.read_bytes().rstrip(b"\n" if name == "manifest.json" else b"")
    for bad in damaged(whole, random.Random(name)):
        file.write_bytes(bad)
        warnings.clear()
        assert checkpoint.latest(three) == three / "step-00000002", bad
        assert "step-00000003" in warnings[0] and "Falling back to the previous checkpoint" in warnings[0]
    for step in (1, 2):
        (three / f"step-{step:08d}" / name).write_bytes(b"")
    with pytest.raises(CorruptCheckpoint, match="None of the 3 checkpoints"):
        checkpoint.latest(three)


def test_a_manifest_whose_values_were_changed_is_damage_though_it_is_good_json(
    three: Path, warnings: list[str]
) -> None:
    file = three / "step-00000003" / "manifest.json"
    whole = json.loads(file.read_text())
    wrong: list[object] = [None, 0, -1, True, "", "x", [], {}, 2**70, 0.5]
    for key in whole:
        for value in wrong:
            if value == whole[key] and type(value) is type(whole[key]):
                continue
            file.write_text(json.dumps(whole | {key: value}))
            assert checkpoint.latest(three) == three / "step-00000002", (key, value)
        file.write_text(json.dumps({other: whole[other] for other in whole if other != key}))
        assert checkpoint.latest(three) == three / "step-00000002", key


def test_a_process_that_lost_its_folder_writes_no_checkpoint(three: Path, capfd) -> None:
    def work() -> int:
        with lease_registry.register_lease("out", lambda: False):
            save(three, 4)
        return 7

    assert in_a_copy(work) == lease_registry.EXIT_CODE
    assert "out was taken over by another process" in capfd.readouterr().err
    assert sorted(path.name for path in three.iterdir()) == [f"step-0000000{step}" for step in (1, 2, 3)]


def test_a_folder_that_is_deleted_while_a_checkpoint_is_written_is_one_sentence(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = tensor_file.write

    def deleting(path: Path, *rest: object) -> object:
        shutil.rmtree(three)
        return write(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tensor_file, "write", deleting)
    with pytest.raises(UserError, match=r"The checkpoint of step 4 could not be written .*No such file"):
        save(three, 4)


class TestDisks:
    """Disks of a test's own: a few hundred kilobytes, or read-only."""

    @pytest.fixture(autouse=True)
    def disk(self, tmp_path: Path) -> Path:
        """Where one can be mounted."""
        (tmp_path / "out").mkdir()
        if not can_mount(tmp_path / "out"):
            pytest.skip("this machine lets no test mount a disk of its own (user namespaces are switched off)")
        return tmp_path / "out"

    @pytest.mark.parametrize("room_is_seen", [True, False])
    def test_a_full_disk_leaves_the_earlier_checkpoint_and_nothing_half_written(
        self, disk: Path, monkeypatch: pytest.MonkeyPatch, room_is_seen: bool
    ) -> None:
        if not room_is_seen:
            monkeypatch.setattr(checkpoint_snapshot, "require_room", lambda *_: None)

        def work() -> int:
            mount(disk, "200k")
            save(disk / "checkpoints", 1)
            large = {str(number): torch.zeros(10_000) for number in range(10)}  # see above: small ones, many of them
            with pytest.raises(UserError) as refused:
                checkpoint.save(disk / "checkpoints", 2, {"model": large}, {}, KEEP)
            assert ("No space left" in str(refused.value)) != room_is_seen
            assert [path.name for path in (disk / "checkpoints").iterdir()] == ["step-00000001"]
            assert read(disk / "checkpoints") == 1
            return 7

        assert in_a_copy(work) == 7

    def test_a_disk_that_fills_up_during_a_run_does_not_hide_the_error_that_it_ends_with(
        self, disk: Path, kitchen, capfd
    ) -> None:
        kitchen.write("r.yaml", "_target_: @.Fail\nhow: unexpected\nrun_dir: out\n")
        fail = parts.Fail.run

        def filling(job: parts.Fail, run: Run) -> Outcome:
            fill(disk)
            return fail(job, run)

        def work() -> int:
            mount(disk, "64k")
            parts.Fail.run = filling
            status = kitchen.main("run", "r.yaml")
            kept = json.loads((disk / "status.json").read_text())
            assert (kept["state"], kept["error"]) == ("failed", "the disk is on fire")
            return status

        assert in_a_copy(work) == 1
        said = capfd.readouterr().err
        assert "RuntimeError: the disk is on fire\nTraceback" in said and "During handling" not in said

    def test_a_run_does_not_start_on_a_full_disk(self, disk: Path, kitchen, capfd) -> None:
        kitchen.write("r.yaml", "_target_: @.Count\nduration: 4 steps\nrun_dir: out\n")

        def work() -> int:
            mount(disk, "8k")
            fill(disk)
            return kitchen.main("run", "r.yaml")

        assert in_a_copy(work) == 2
        assert "cannot hold out: No space left on device" in capfd.readouterr().err

    def test_a_read_only_folder_is_refused_in_a_sentence(self, disk: Path, kitchen, capfd) -> None:
        kitchen.write("r.yaml", "_target_: @.Count\nduration: 4 steps\nrun_dir: out/run\n")

        def work(where: Path) -> int:
            mount(where, flags=READ_ONLY)
            return kitchen.main("run", "r.yaml")

        assert in_a_copy(lambda: work(disk)) == 2
        assert "cannot make the folder out/run: Read-only file system" in capfd.readouterr().err
        (disk / "run").mkdir()
        assert in_a_copy(lambda: work(disk / "run")) == 2
        assert "cannot write in out/run: Read-only file system" in capfd.readouterr().err


def test_a_run_whose_end_cannot_be_written_does_not_end_well(kitchen, monkeypatch, capfd) -> None:
    def failing(path: Path, whole: dict[str, object]) -> None:
        if path.name == "status.json" and whole["state"] == "done":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write_json(path, whole)

    kitchen.write("r.yaml", "_target_: @.Count\nduration: 1 steps\nrun_dir: out\n")
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_json", failing)
        assert kitchen.main("run", "r.yaml") == 2
    assert "all work is done, but out/status.json cannot be written" in " ".join(capfd.readouterr().err.split())
    assert read_json(Path("out/status.json"))["state"] == "failed"
    assert kitchen.main("run", "r.yaml") == 0 and read_json(Path("out/status.json"))["state"] == "done"


def test_a_status_that_cannot_be_written_is_said_once_and_the_run_goes_on(tmp_path: Path, capfd) -> None:
    with Disk(1, "EIO").failing():
        Status(tmp_path).write("running")
    assert "cannot be written: Input/output error" in " ".join(capfd.readouterr().err.split())
    Status(tmp_path).write("running")
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "running"


class TestLinks:
    """A user may put a run on a larger disk by a link. A file that is replaced replaces a link, and not its target."""

    def test_a_run_folder_that_is_a_link_is_used_where_the_user_names_it(self, tmp_path: Path, kitchen) -> None:
        (tmp_path / "large").mkdir()
        (tmp_path / "out").symlink_to(tmp_path / "large")
        kitchen.write("r.yaml", "_target_: @.Count\nduration: 4 steps\nrun_dir: out\n")
        assert kitchen.main("run", "r.yaml") == 2 and not list((tmp_path / "large").iterdir())
        assert kitchen.main("run", "r.yaml", "run_dir=out") == 0
        assert kitchen.main("run", "out/recipe.yaml") == 0
        assert (tmp_path / "large" / "recipe.yaml").is_file() and (tmp_path / "out").is_symlink()

    @pytest.mark.parametrize("name", ["status.json", "manifest.json", "report.html", "started.json", "done.json"])
    def test_a_link_in_the_place_of_a_file_is_not_written_through(self, tmp_path: Path, kitchen, name: str) -> None:
        kitchen.write("r.yaml", "_target_: @.Count\nduration: 4 steps\nrun_dir: out\n")
        (tmp_path / "precious").write_text("{}" if name.startswith("manifest") else "precious")
        before = (tmp_path / "precious").read_text()
        kitchen.main("run", "r.yaml")
        (tmp_path / "out" / name).unlink()
        (tmp_path / "out" / name).symlink_to(tmp_path / "precious")
        kitchen.main("run", "r.yaml", "duration=6 steps")
        assert (tmp_path / "precious").read_text() == before

    def test_what_a_workflow_sets_aside_is_moved_and_not_deleted_also_through_a_link(
        self, tmp_path: Path, kitchen
    ) -> None:
        kitchen.write(
            "r.yaml",
            "_target_: nemo_vfm.workflow.Workflow\nrun_dir: out\nsteps:\n"
            "  one: {_target_: @.Count, duration: 2 steps}\n"
            "  two: {_target_: @.Count, duration: 2 steps, source: out/one/steps}\n",
        )
        assert kitchen.main("run", "r.yaml") == 0
        (tmp_path / "elsewhere").mkdir()
        shutil.move(tmp_path / "out" / "two", tmp_path / "elsewhere" / "two")
        (tmp_path / "out" / "two").symlink_to(tmp_path / "elsewhere" / "two")
        (tmp_path / "out" / "_replaced").symlink_to(tmp_path / "elsewhere")
        assert kitchen.main("run", "r.yaml", "steps.one.duration=3 steps") == 0
        assert (tmp_path / "elsewhere" / "two" / "done.json").is_file(), "what the link pointed to is as it was"
        assert (tmp_path / "elsewhere" / "two-1").is_symlink() and not (tmp_path / "out" / "two").is_symlink()


def test_a_start_on_a_folder_of_another_run_changes_nothing_in_it(tmp_path: Path) -> None:
    with open_folder(tmp_path / "run", "_target_: x\nwidth: 1\n", 0):
        pass
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir() if path.name != ".lock"}
    time.sleep(0.01)
    with (
        pytest.raises(RunFolderError, match="width: 1 there, 2 now"),
        open_folder(tmp_path / "run", "_target_: x\nwidth: 2\n", 0),
    ):
        pass
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir() if path.name != ".lock"}
