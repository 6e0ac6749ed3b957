"""Tests that two ranks with a damaged newest checkpoint both resume from the same good one, or stop."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.parallel.checkpoint import checkpoint_manifest as manifests
from tests.support import tiny_training
from tests.support.combinations import cases
from tests.support.ranks import RankFailed, on_ranks
from tests.support.tiny_training import changes, metrics, notes, trained

pytestmark = pytest.mark.cluster  # several ranks

LAST, BEFORE, PART = "step-00000004", "step-00000002", "model-00001-of-00002.safetensors"
LAYOUT = "parallel.shard=2"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_training.shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps on two ranks, never disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    on_ranks(2, trained, changes(data, folder, LAYOUT))
    return folder


@pytest.fixture(scope="module")
def others(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of the same recipe, run another time: the same numbers, another run."""
    folder = tmp_path_factory.mktemp("other") / "run"
    on_ranks(2, trained, changes(data, folder, LAYOUT, steps=4))
    return folder / "checkpoints"


def truncated(folder: Path, others: Path) -> None:
    """The second half of one rank's file is gone."""
    file = folder / LAST / PART
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flipped(folder: Path, others: Path) -> None:
    file = folder / LAST / PART
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(bytes(content))


def stale(folder: Path, others: Path) -> None:
    """One rank's file is that of an earlier step, with a manifest that was made to fit: same names, same shapes."""
    shutil.copy(folder / BEFORE / PART, folder / LAST / PART)
    _reseal(folder / LAST)


def mixed(folder: Path, others: Path) -> None:
    """One rank's file is that of the same step of another run, with a manifest that was made to fit."""
    shutil.copy(others / LAST / PART, folder / LAST / PART)
    _reseal(folder / LAST)


def incomplete(folder: Path, others: Path) -> None:
    """A copy that was cut off: one rank's file never came."""
    (folder / LAST / PART).unlink()


def _reseal(one: Path) -> None:
    manifest = json.loads((one / manifests.NAME).read_text())
    manifest["files"][PART] = {"bytes": (one / PART).stat().st_size, "sha256": sha256_file(one / PART)}
    (one / manifests.NAME).write_text(json.dumps({**manifest, "seal": manifests.seal(manifest)}))


@pytest.mark.parametrize("damage", cases([truncated, flipped, stale, mixed, incomplete], [flipped, incomplete]))
def test_both_ranks_go_back_to_the_last_good_one_say_so_and_end_as_if_it_had_never_been(
    data: Path, whole: Path, others: Path, tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints/step-00000006")
    damage(folder / "checkpoints", others)
    said = on_ranks(2, trained, changes(data, folder, LAYOUT))
    assert any(LAST in line and "Falling back to the previous checkpoint" in line for line in said[0])
    assert all(
        any(f"resuming at step 2 from {folder / 'checkpoints' / BEFORE}" in line for line in own) for own in said
    )
    assert metrics(folder) == [pytest.approx(line, rel=1e-6) for line in metrics(whole)]
    assert sorted(notes(folder)) == [2, 3, 4, 5]


def test_a_checkpoint_of_another_run_among_ours_stops_both_ranks_with_one_sentence(
    data: Path, whole: Path, others: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints/step-00000004")
    shutil.copytree(others / LAST, folder / "checkpoints/step-00000004")
    with pytest.raises(RankFailed) as error:
        on_ranks(2, trained, changes(data, folder, LAYOUT, steps=8))
    assert str(error.value).count("holds checkpoints of 2 runs") >= 2 and "rank 1:" in str(error.value)


def test_where_all_are_damaged_both_ranks_stop_and_do_not_start_over(
    data: Path, whole: Path, others: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for one in (folder / "checkpoints").glob("step-*"):
        (one / PART).unlink()
    with pytest.raises(RankFailed) as error:
        on_ranks(2, trained, changes(data, folder, LAYOUT, steps=8))
    assert str(error.value).count("None of the 3 checkpoints") >= 2 and "rank 1:" in str(error.value)
    assert not Path(f"{folder}-notes").exists()
