"""Tests that videos in an object store give the clips of those on a disk, and that a lost one costs itself alone."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import StoreError, StoreUnreachable, UserError
from nemo_vfm.core.storage.object_store import StoredObject, items
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate import job as curate_job
from nemo_vfm.curate.sources.video_source import FetchedFile, Folder
from nemo_vfm.data.shards.shard_files import ShardSet
from tests.support.films import job, pan, write_film
from tests.support.object_store import BUCKET, Bucket, Failing
from tests.support.stills import turned_jpeg, write_still

RAW = Address(f"s3://{BUCKET}/raw")
CLIPS = Address(f"s3://{BUCKET}/clips")


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good films, one with a caption beside it, one damaged, in two folders."""
    folder = tmp_path_factory.mktemp("films")
    (folder / "deep").mkdir()
    write_film(folder / "b.mp4", pan(1))
    write_film(folder / "deep" / "a.mp4", pan(2))
    (folder / "deep" / "a.TXT").write_text("a striped thing")
    (folder / "noise.mp4").write_bytes(b"no video" * 400)
    return folder


def put(bucket: Bucket, films: Path) -> None:
    for path in films.rglob("*"):
        if path.is_file():
            bucket.put(f"raw/{path.relative_to(films).as_posix()}", path.read_bytes())


def outputs(folder: Path) -> dict[str, object]:
    shards = ShardSet(folder / "shards")
    read = {(entry.key, name): shards.read(entry, name) for entry in shards.entries for name in entry.members}
    scores = pq.read_table(folder / "scores.parquet").to_pydict()
    return {"shards": read, "scores": scores, "ledger": json.loads((folder / "ledger.json").read_text())}


@pytest.mark.slow
def test_curation_from_the_store_writes_what_it_writes_from_a_disk(bucket: Bucket, films: Path, tmp_path: Path) -> None:
    put(bucket, films)
    bucket.put("raw/.hidden/x.mp4", b"1")
    bucket.put("raw/x.mp4.part", b"1")
    job(films).run(Run(tmp_path / "disk"))
    job(films, source=Folder(path=RAW), copy_to=CLIPS).run(Run(tmp_path / "store"))
    assert outputs(tmp_path / "disk") == outputs(tmp_path / "store")
    assert outputs(tmp_path / "store")["ledger"]["files"]["failed"]
    there, here = ShardSet(CLIPS), ShardSet(tmp_path / "store" / "shards")
    assert [e.key for e in there.entries] == [e.key for e in here.entries]
    assert there.read(there.entries[0], "mp4") == here.read(here.entries[0], "mp4")
    again = job(films, source=Folder(path=RAW), copy_to=CLIPS).run(Run(tmp_path / "store"))
    assert again.did_nothing


@pytest.mark.slow
def test_pictures_from_the_store_give_what_they_give_from_a_disk(bucket: Bucket, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    (pictures / "deep").mkdir(parents=True)
    for seed, name in enumerate(("photo.jpg", "deep/drawing.png", "deep/scan.webp")):
        write_still(pictures / name, seed)
    (pictures / "turned.jpg").write_bytes(turned_jpeg(7, 6))
    (pictures / "cut.jpg").write_bytes(turned_jpeg(8, 6)[:2000])
    (pictures / "deep/scan.txt").write_text("a scan")
    put(bucket, pictures)
    for name, path in (("disk", pictures), ("store", RAW)):
        job(pictures, source=Folder(path=path, take="images")).run(Run(tmp_path / name))
    here, there = outputs(tmp_path / "disk"), outputs(tmp_path / "store")
    assert there == here
    images = json.loads((tmp_path / "store/ledger.json").read_text())["images"]
    assert images["kept"] == 4 and sum(images["failed"].values()) == 1
    assert "a scan" in pq.read_table(tmp_path / "store/scores.parquet")["caption"].to_pylist()


def test_one_object_is_a_source_too(bucket: Bucket, films: Path, tmp_path: Path) -> None:
    put(bucket, films)
    source = Folder(path=RAW / "deep/a.mp4")
    source.fetch_into(tmp_path)
    (found,) = source.files()
    with found.here() as path:
        assert found.name == "a.mp4" and path.read_bytes() == (films / "deep/a.mp4").read_bytes()
    assert path.with_suffix(".TXT").read_text() == "a striped thing"


def test_an_object_whose_name_is_too_long_for_a_file_is_fetched_with_its_caption(
    bucket: Bucket, films: Path, tmp_path: Path
) -> None:
    long = f"{'n' * 300}/{'m' * 300}"
    bucket.put(f"raw/{long}.mp4", (films / "b.mp4").read_bytes())
    bucket.put(f"raw/{long}.txt", b"told")
    source = Folder(path=RAW)
    source.fetch_into(tmp_path)
    (found,) = source.files()
    with found.here() as path:
        assert path.read_bytes() == (films / "b.mp4").read_bytes() and path.with_suffix(".txt").read_text() == "told"
    assert found.name == f"{long}.mp4"


def test_nothing_there_and_nowhere_to_fetch_to_are_said(bucket: Bucket, tmp_path: Path) -> None:
    source = Folder(path=RAW)
    with pytest.raises(UserError, match="no folder was given"):
        source.files()
    source.fetch_into(tmp_path)
    with pytest.raises(UserError, match="holds no video"):
        source.files()
    bare = Folder(path=Address("s3://nobody/raw"))
    bare.fetch_into(tmp_path)
    with pytest.raises(StoreError, match="no bucket nobody"):
        bare.files()


@pytest.mark.parametrize("when", ["before it is probed", "after it was probed"])
def test_a_film_that_vanishes_is_a_failed_file_and_the_others_are_kept(
    bucket: Bucket, films: Path, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, films)
    name = "probe_all" if when.startswith("before") else "examine_all"
    real = getattr(curate_job, name)

    def vanishing(files: list[object], *more: object, **named: object) -> object:
        bucket.delete("raw/b.mp4")
        for path in tmp_path.rglob("b.mp4"):
            path.unlink()
        return real(files, *more, **named)

    monkeypatch.setattr(curate_job, name, vanishing)
    job(films, source=Folder(path=RAW)).run(Run(tmp_path))
    ledger = json.loads((tmp_path / "ledger.json").read_text())["files"]
    assert (ledger["in"], ledger["kept"], sum(ledger["failed"].values())) == (3, 1, 2)
    assert any("there is no" in message for message in ledger["failed"])


def test_a_film_that_is_refused_is_a_failed_file(failing: Failing, films: Path, tmp_path: Path) -> None:
    put(failing, films)
    failing.faults["/shelf/raw/b.mp4"] = 403
    job(films, source=Folder(path=RAW)).run(Run(tmp_path))
    assert any(
        "denies access" in message for message in json.loads((tmp_path / "ledger.json").read_text())["files"]["failed"]
    )


@pytest.mark.slow  # it waits for silence
def test_a_store_that_falls_silent_stops_the_run_which_goes_on_later(
    failing: Failing, films: Path, tmp_path: Path
) -> None:
    put(failing, films)
    os.environ["NEMO_VFM_STORE_TIMEOUT_S"] = "1"
    failing.faults["GET /shelf/raw/deep/a.mp4"] = "reset"
    with pytest.raises(StoreUnreachable):
        job(films, source=Folder(path=RAW)).run(Run(tmp_path))
    failing.faults.clear()
    job(films, source=Folder(path=RAW)).run(Run(tmp_path))
    assert json.loads((tmp_path / "ledger.json").read_text())["files"]["kept"] == 2
    assert not list(tmp_path.rglob(".*.tmp*"))


def size(path: Path) -> int:
    """Bytes of a file that somebody else may be deleting."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_fetched_files_stay_within_their_bytes_with_several_at_work(bucket: Bucket, tmp_path: Path) -> None:
    for number in range(12):
        bucket.put(f"raw/{number:02d}.mp4", bytes([number]) * 1000)
    fetched, worst = FetchedFile(RAW, tmp_path, 2500), []

    def use(item: StoredObject) -> bytes:
        with fetched.hold(item) as path:
            worst.append(sum(map(size, tmp_path.rglob("[!.]*.mp4"))))
            return path.read_bytes()

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(use, items(RAW) * 2))
    assert found == [bytes([number]) * 1000 for number in range(12)] * 2
    assert max(worst) <= 2500


def test_a_film_larger_than_the_room_fails_and_one_that_changed_under_us_too(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("raw/a.mp4", bytes(1000))
    (item,) = items(RAW)
    with pytest.raises(Exception, match="raise max_fetched_gb"), FetchedFile(RAW, tmp_path, 999).hold(item):
        pass
    fetched = FetchedFile(RAW, tmp_path, 5000)
    with fetched.hold(item) as path:
        pass
    path.unlink()
    bucket.put("raw/a.mp4", b"1" * 1000)
    with pytest.raises(Exception, match="recorded hash"), fetched.hold(item):
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with pytest.raises(ValueError, match="above 0"):
        Folder(path=RAW, max_fetched_gb=0)
