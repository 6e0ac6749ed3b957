"""Tests training from files: the loader's guarantees, the right captions, and that changes are noticed."""

import json
import os
import tarfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.frame_count import PixelFrames
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.core.types.training_data import HasBatchSizes, TrainingData
from nemo_vfm.curate.encode_shards import training_windows
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.sources.blend import Blend, BlendSource
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.sources.streamed import StreamedTars
from nemo_vfm.data.sources.table_file import rows_of
from nemo_vfm.data.sources.video_folder import VideoFolder
from nemo_vfm.data.sources.video_table import VideoTable
from nemo_vfm.data.video import fit_to_bucket as transform
from nemo_vfm.data.video import media_info
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import given_frames
from tests.data.conftest import moving, mp4
from tests.data.test_shard_data import contents
from tests.support.awkward import film
from tests.support.odd_tables import ODD_TABLES
from tests.support.stills import turned_jpeg

SHAPES = Buckets(buckets={"film": Bucket(48, 32, 5, 8), "still": Bucket(32, 32, 1)})


@pytest.fixture(scope="module")
def films() -> list[bytes]:
    return [mp4(seed=seed) for seed in range(5)]


@pytest.fixture
def folder(tmp_path: Path, films: list[bytes]) -> Path:
    """Five films and two pictures with captions of four kinds, and what must be passed over."""
    root = tmp_path / "videos"
    (root / "deep" / "er").mkdir(parents=True)
    places = ["a.mp4", "b.mkv", "deep/a.mp4", "deep/er/c d.mov", "deep/e.MP4"]
    for place, data in zip(places, films, strict=True):
        (root / place).write_bytes(data)
    for number in range(2):
        (root / f"still{number}.png").write_bytes(cv2.imencode(".png", moving(1, 50, 40, number)[0])[1].tobytes())
    (root / "a.txt").write_text(" first \n")
    (root / "b.mkv.json").write_text(json.dumps({"caption": "second", "other": 1}))
    (root / "deep/a.json").write_text(json.dumps({"caption": "third"}))
    (root / "deep/er/c d.txt").write_text("fourth")
    (root / "deep/e.json").write_text(json.dumps({"caption": 5}))
    (root / "broken.mp4").write_bytes(films[0][:900])
    (root / ".hidden.mp4").write_bytes(films[0])
    (root / "half.mp4.part").write_bytes(films[0])
    (tmp_path / "outside.mp4").write_bytes(films[0])
    (root / "link.mp4").symlink_to(tmp_path / "outside.mp4")
    return root


def take(data: ListedData, count: int, *, first: int = 0, rank: int = 0, num_ranks: int = 1) -> list[Batch]:
    data.start(seed=1, first_batch=first, rank=rank, num_ranks=num_ranks)
    return list(islice(data.train_dataloader(), count))


def data_of(folder: Path, **changes: object) -> VideoFolder:
    return VideoFolder(**({"path": folder, "buckets": SHAPES, "batch_size": 2} | changes))  # type: ignore[arg-type]


def captions(data: ListedData) -> dict[str, str]:
    return {key: caption for batch in take(data, 12) for key, caption in zip(batch.keys, batch.captions, strict=True)}


def test_each_file_is_a_sample_with_its_own_caption(folder: Path) -> None:
    data = data_of(folder)
    assert isinstance(data, TrainingData) and isinstance(data, HasBatchSizes)
    found = {key.rpartition("-")[0]: caption for key, caption in captions(data).items()}
    assert found == {
        "a-mp4": "first", "b-mkv": "second", "deep-a-mp4": "third", "deep-er-c-d-mov": "fourth", "deep-e-MP4": "",
        "still0-png": "", "still1-png": "",
    }  # fmt: skip
    assert data.num_train_samples() == 7 and not data.faults.by_sample


def test_no_sample_strides_across_a_hole_in_the_time_stamps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Frames 0 to 19 are dark, a pause of a minute follows, 20 to 59 are light; the file's middle lies nearby."""
    stamps = [125 * number + (60_000 if number >= 20 else 0) for number in range(60)]
    pictures = [np.full((64, 80, 3), 30 if number < 20 else 220, np.uint8) for number in range(60)]
    paused = film(pictures, stamps_ms=stamps, fps=8)
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/a.mp4").write_bytes(paused)
    long = Buckets(buckets={"film": Bucket(48, 32, 33, 8)})
    batch = take(data_of(tmp_path / "videos", buckets=long, batch_size=1), 1)[0]
    assert batch.video_BCTHW.min() > 200 and batch.fps_B.tolist() == [8.0]
    assert "1 of 1 files have gaps in their timestamps" in capfd.readouterr().err
    longer = Buckets(buckets={"film": Bucket(48, 32, 41, 8)})
    with pytest.raises(UserError, match="left to train on"):
        take(data_of(tmp_path / "videos", buckets=longer, batch_size=1), 1)
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars/0.tar", "w") as tar:
        tar.add(tmp_path / "videos/a.mp4", "a.mp4")
    unlisted = take(ShardData(shards=tmp_path / "tars", buckets=long, batch_size=1), 1)[0]
    assert (unlisted.video_BCTHW == batch.video_BCTHW).all() and unlisted.fps_B.tolist() == [8.0]
    windows = list(training_windows(paused, is_image=False, bucket=long.buckets["film"], max_windows=3))
    assert len(windows) == 3 and all(frames_THWC.min() > 200 and fps == 8.0 for frames_THWC, fps in windows)


def test_the_frames_that_a_video_goes_on_from_lie_after_its_last_hole(tmp_path: Path) -> None:
    stamps = [125 * number + (60_000 if number >= 20 else 0) for number in range(24)]
    path = tmp_path / "a.mp4"
    path.write_bytes(film(moving(24, 64, 80), stamps_ms=stamps, fps=8))
    assert given_frames(path, PixelFrames(4), width=80, height=64).shape[0] == 4
    with pytest.raises(UserError, match="has 4 frames after the last gap in its timestamps, but 5 pixel frames"):
        given_frames(path, PixelFrames(5), width=80, height=64)


def test_batches_do_not_depend_on_workers_ranks_or_resumes(folder: Path) -> None:
    whole = take(data_of(folder), 8)
    assert contents(take(data_of(folder, num_workers=2), 8)) == contents(whole)
    assert contents(take(data_of(folder), 3, first=5)) == contents(whole)[5:]
    parts = [take(data_of(folder), 8, rank=rank, num_ranks=2) for rank in (0, 1)]
    assert [one.keys + two.keys for one, two in zip(*parts, strict=True)] == [batch.keys for batch in whole]


def test_the_same_folder_elsewhere_gives_the_same_batches(folder: Path, tmp_path: Path) -> None:
    whole = contents(take(data_of(folder), 6))
    assert contents(take(data_of(folder.rename(tmp_path / "moved")), 6)) == whole


def test_a_file_is_looked_at_once_and_again_when_it_changed(
    folder: Path, films: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, looked = tmp_path / "index.json", []
    monkeypatch.setattr(media_info, "_SAVE_EVERY", 3)
    original: Callable[[Path], object] = media_info._facts
    monkeypatch.setattr(media_info, "_facts", lambda path: looked.append(path.name) or original(path))
    take(data_of(folder, index=index), 1)
    assert len(looked) == 8
    looked.clear()
    first = contents(take(data_of(folder, index=index), 4))
    assert looked == [] and first == contents(take(data_of(folder), 4))
    looked.clear()
    (folder / "a.mp4").write_bytes(films[3])
    os.utime(folder / "b.mkv", ns=(1, 1))
    (folder / "deep/a.mp4").unlink()
    data = data_of(folder, index=index)
    take(data, 1)
    assert sorted(looked) == ["a.mp4", "b.mkv"] and data.num_train_samples() == 6


_FACTS = b'{\n "schema": "nemo_vfm.file_facts/'


@pytest.mark.parametrize(
    "content", [b"", b"{", _FACTS[:20], _FACTS + b'0"}', _FACTS + b'1"}', _FACTS + b'1" ' + b"[" * 99999,
                _FACTS + b'1", "files": {"a.mp4": {"size": "1"}}}'],
)  # fmt: skip
def test_a_damaged_index_is_made_again(content: bytes, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(content)
    data = data_of(folder, index=tmp_path / "index.json")
    take(data, 1)
    assert data.num_train_samples() == 7
    assert len(json.loads((tmp_path / "index.json").read_bytes())["files"]) == 8


def test_a_file_that_changes_while_training_keeps_its_place_with_weight_zero(folder: Path, films: list[bytes]) -> None:
    data = data_of(folder)
    keys = [batch.keys for batch in take(data, 6)]
    (folder / "a.mp4").write_bytes(films[3] + b"x")
    again = list(islice(data.train_dataloader(), 6))
    assert [batch.keys for batch in again] == keys
    bad = {key for b in again for key, weight in zip(b.keys, b.weight_B.tolist(), strict=True) if weight == 0}
    assert {key.rpartition("-")[0] for key in bad} == {"a-mp4"}


def test_a_turned_picture_goes_to_the_bucket_of_its_upright_form(tmp_path: Path) -> None:
    shapes = Buckets(buckets={"wide": Bucket(96, 64, 1), "tall": Bucket(64, 96, 1)})
    for orientation in (1, 6):
        (tmp_path / f"{orientation}.jpg").write_bytes(turned_jpeg(1, orientation))
    data = data_of(tmp_path, buckets=shapes, batch_size=1)
    found = {key[0]: batch.video_BCTHW.shape[3:] for batch in take(data, 2) for key in batch.keys}
    assert found == {"1": (64, 96), "6": (96, 64)}


def test_a_file_of_any_name_is_a_sample_with_the_caption_beside_it(tmp_path: Path, films: list[bytes]) -> None:
    (tmp_path / "in").mkdir()
    for number, name in enumerate((b"caf\xe9", b"n" * 251, "\u00fc".encode() * 120, b"new\nline")):
        place = os.fsencode(tmp_path / "in") + b"/" + name
        Path(os.fsdecode(place + b".mp4")).write_bytes(films[number])
        Path(os.fsdecode(place + b".txt")).write_text(str(number))
    for index in (None, tmp_path / "index.json", tmp_path / "index.json"):
        data = data_of(tmp_path / "in", index=index)
        assert sorted(captions(data).values()) == ["0", "1", "2", "3"]
        assert data.num_train_samples() == 4 and not data.faults.by_sample


def test_what_is_passed_over_and_what_is_cropped_too_much_is_counted_in_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "banner.png").write_bytes(cv2.imencode(".png", moving(1, 640, 64)[0])[1].tobytes())
    for name in ("a.gif", "deep/b.GIF", "c.heic", ".hidden.gif"):
        (folder / name).write_bytes(b"GIF89a")
    data = data_of(folder)
    take(data, 1)
    assert data.num_train_samples() == 7
    said = capsys.readouterr().err
    assert "1 cropped too much by every bucket" in said and "3 files in" in said and "2 .gif, 1 .heic" in said
    assert ".txt" not in said


def test_what_cannot_be_trained_on_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, words in ((tmp_path / "none", "not a folder"), (tmp_path / "empty", "no video or image")):
        with pytest.raises(UserError, match=words):
            take(data_of(path), 1)
    with pytest.raises(ValueError, match="must be a local path"):
        data_of(Path("s3://bucket/videos"))


def write_table(path: Path, rows: list[dict[str, str]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    else:
        path.write_text("\ufeff" + "\n".join(['"file","said",more', *(f'"{r["file"]}","{r["said"]}",1' for r in rows)]))
    return path


ROWS = [
    {"file": "videos/a.mp4", "said": "one, and\nmore"}, {"file": "videos/b.mkv", "said": "two"},
    {"file": "videos/a.mp4", "said": "another of a"}, {"file": "videos/b.mkv", "said": "two"},
    {"file": "videos/../../x.mp4", "said": "out"}, {"file": "videos/link.mp4", "said": "a link inside root"},
    {"file": "videos/missing.mp4", "said": "none"}, {"file": "videos/still0.png", "said": "still"},
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_gives_each_row_its_caption(suffix: str, folder: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / f"table{suffix}", ROWS)
    data = VideoTable(path=table, buckets=SHAPES, batch_size=1, video="file", caption="said")
    found = captions(data)
    assert sorted(found.values()) == ["a link inside root", "another of a", "one, and\nmore", "still", "two"]
    assert data.num_train_samples() == 5 and len(found) == 5
    whole = contents(take(data, 6))
    again = VideoTable(path=table, buckets=SHAPES, batch_size=1, video="file", caption="said", num_workers=1)
    assert contents(take(again, 3, first=3)) == whole[3:]


def test_a_parquet_of_more_rows_than_are_read_at_once_loses_none(tmp_path: Path) -> None:
    names = [*["a.mp4"] * 65_536, "last.mp4"]
    pyarrow.parquet.write_table(pyarrow.table({"file": names}), tmp_path / "table.parquet")
    assert [row.values["file"] for row in rows_of(tmp_path / "table.parquet", ["file"])] == names


def test_a_table_without_captions_or_with_another_root(folder: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", [{"file": "a.mp4", "said": ""}])
    data = VideoTable(path=table, buckets=SHAPES, batch_size=1, video="file", caption=None, root=folder)
    assert set(captions(data).values()) == {""}
    with pytest.raises(UserError, match="relative to root"):
        write_table(table, [{"file": "../b.mp4", "said": ""}])
        take(VideoTable(path=table, buckets=SHAPES, batch_size=1, video="file", caption=None, root=folder), 1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        *ODD_TABLES,
        ("t.csv", b"a,b\n1,2\n", "no column video; it has a, b"), ("t.csv", b'video,caption\n"x', "cannot be read"),
        ("t.csv", b"video,caption\n" + b"x" * 200_000 + b",y\n", "field larger"),
        ("t.jsonl", b"[1]\n", "must be an object"),
        ("t.jsonl", b'{"video": 3, "caption": ""}\n', "has no file"), ("t.jsonl", b"[" * 200_000, "cannot be read"),
        ("t.jsonl", b'{"video": "' + b"x" * (1 << 20) + b'"}', "more than 1,048,576"),
        ("t.jsonl", b"\xff\n", "cannot be read"),
        ("t.jsonl", b'{"video": "\\ud800.mp4", "caption": ""}\n', "not a path"),
        ("t.jsonl", b'{"video": "round/x.mp4", "caption": ""}\n', "not a path"),
        ("t.parquet", b"PAR1 no PAR1", "cannot be read"), ("t.csv", b"video,caption\n", "names no file below"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_used_are_a_sentence(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises((UserError, DataError), match=words):
        take(VideoTable(path=tmp_path / name, buckets=SHAPES, batch_size=1), 1)
    with pytest.raises(ValueError, match=r"one of \.csv"):
        VideoTable(path=tmp_path / "t.xlsx", buckets=SHAPES, batch_size=1)


def test_a_folder_may_be_a_source_of_a_blend(folder: Path) -> None:
    blend = Blend(sources={"files": BlendSource(data_of(folder))})
    blend.start(seed=1, first_batch=0)
    assert len({key for batch in islice(blend.train_dataloader(), 8) for key in batch.keys}) == 7


@pytest.mark.parametrize("decoder", ["auto", "pyav", "decord", "torchcodec"])
def test_the_named_decoder_reads_the_videos_of_every_source(
    decoder: Decoder, films: list[bytes], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_table(tmp_path / "t.csv", [{"file": "a.mp4", "said": ""}])
    with ShardWriter(tmp_path / "shards", samples_per_shard=1) as writer:
        writer.write("one", {"mp4": films[0]}, {"width": 80, "height": 64, "num_frames": 12, "fps": 8.0})
    asked: list[Decoder] = []
    monkeypatch.setattr(transform, "open_video", lambda source, how: asked.append(how) or open_video(source, "pyav"))
    sources = (
        data_of(folder / "deep", batch_size=1, decoder=decoder),
        VideoTable(
            path=table, buckets=SHAPES, batch_size=1, video="file", caption="said", root=folder, decoder=decoder
        ),
        ShardData(shards=tmp_path / "shards", buckets=SHAPES, batch_size=1, decoder=decoder),
        StreamedTars(tars=tmp_path / "shards", bucket=SHAPES.buckets["film"], batch_size=1, decoder=decoder),
    )
    for data in sources:
        asked.clear()
        data.start(seed=0, first_batch=0)
        assert float(next(iter(data.train_dataloader())).weight_B[0]) == 1
        assert asked == [decoder], type(data).__name__


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_of_any_separator_gives_the_same_rows(separator: str, tmp_path: Path) -> None:
    lines = [["video", "caption"], ["a.mp4", '"a, b; c\td ""e"""'], [], ["b.mp4", ""]]
    (tmp_path / "t.csv").write_text("".join(separator.join(line) + "\r\n" for line in lines), newline="")
    rows = [dict(row.values) for row in rows_of(tmp_path / "t.csv", ["video", "caption"])]
    assert rows == [{"video": "a.mp4", "caption": 'a, b; c\td "e"'}, {"video": "b.mp4", "caption": ""}]
