"""Tests which clips a file beside a video captions."""

import json
import os
import tarfile
from fractions import Fraction

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.caption.description import Description
from nemo_vfm.curate.caption.sidecar import Sidecar
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.shards.clip_id import Clip
from nemo_vfm.data.shards.sample_reader import caption_of
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.shards.tar_stream import placed_tar, samples_of
from nemo_vfm.data.sources.video_folder import caption_beside
from tests.support.films import job, pan, write_film


def record(path, first=0, last=10, scores=None):
    clip = Clip("0" * 64, first, last, first, last, Fraction(1, 12))
    return ClipRecord(clip, path.name, (path,), 12.0, 64, 48, 3_200_000, scores=scores or {})


def shots(*entries):
    names = ("first_frame", "last_frame", "caption")
    return json.dumps({"captions": [dict(zip(names, entry, strict=True)) for entry in entries]})


@pytest.mark.parametrize("name", ["a.txt", "a.mp4.txt", "a.json", "a.mp4.json"])
def test_a_file_beside_the_video_speaks_for_all_its_clips(tmp_path, name):
    text = json.dumps({"caption": " a cat "}) if name.endswith("json") else "a cat\n"
    (tmp_path / name).write_text(text)
    assert Sidecar().caption(record(tmp_path / "a.mp4")) == ("a cat", "sidecar")


_SAYS = {
    "a caption": (" said {}\n", '{{"caption": "said {}"}}', True), "nothing": (" \n", '{{"fps": 24}}', False),
    "damage": ("\udcff {}", '{{"caption": "{}', False),
}  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["x.mp4", "x.PNG", "x.my video.mp4", "dé/x.v1.MOV"]),
    st.dictionaries(
        st.tuples(st.booleans(), st.sampled_from(["json", "txt", "text", "caption"])),
        st.tuples(st.sampled_from(sorted(_SAYS)), st.booleans()),
        max_size=4,
    ),
)
def test_folders_tars_streams_and_curation_find_the_same_caption(tmp_path_factory, media, texts):
    root, expected = tmp_path_factory.mktemp("films"), ""
    video = root / media
    video.parent.mkdir(exist_ok=True)
    video.write_bytes(b"film")
    order = [(with_suffix, suffix) for suffix in ("json", "txt", "text", "caption") for with_suffix in (True, False)]
    for place in (place for place in order if place in texts):
        with_suffix, suffix = place
        (says, in_capitals), name = texts[place], video.name if with_suffix else video.stem
        text, as_json, has_caption = _SAYS[says]
        content = (as_json if suffix == "json" else text).format(name).encode(errors="surrogateescape")
        video.with_name(f"{name}.{suffix.upper() if in_capitals else suffix}").write_bytes(content)
        expected = expected or (f"said {name}" if has_caption else "")
    with tarfile.open(root / "a.tar", "w") as out:
        for path in sorted(video.parent.iterdir()):
            if path.suffix != ".tar":
                out.add(path, path.relative_to(root).as_posix())
    shards = ShardSet(root)
    (raw,) = samples_of(placed_tar(root / "a.tar"), max_member_bytes=1 << 20)
    assert caption_beside(video, root) == expected
    assert caption_of(shards, shards.entries[0]) == caption_of(raw, raw.entry) == expected
    assert Sidecar().caption(record(video)) == ((expected, "sidecar") if expected else None)


def test_a_clip_takes_the_caption_it_shares_max_frames_with(tmp_path):
    (tmp_path / "a.json").write_text(shots((0, 10, "one"), (10, 30, "two"), (30, 40, "three")))
    said = [Sidecar().caption(record(tmp_path / "a.mp4", *span)) for span in ((0, 11), (8, 31), (29, 40), (50, 60))]
    assert said == [("one", "sidecar"), ("two", "sidecar"), ("three", "sidecar"), None]


def test_a_sidecar_beside_a_copy_of_the_same_bytes_counts_too(tmp_path):
    (tmp_path / "b.txt").write_text("a dog")
    copy = record(tmp_path / "a.mp4")
    copy.paths = (tmp_path / "a.mp4", tmp_path / "b.mp4")
    assert Sidecar().caption(copy) == ("a dog", "sidecar")


@pytest.mark.parametrize("text", ["{", "[]", '{"title": 1}', shots((5, 5, "x")), shots((0, 9, 7)), "\udcff"])
def test_a_broken_sidecar_says_nothing_and_stops_nothing(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / "a.txt").write_text("from the text")
    assert Sidecar().caption(record(tmp_path / "a.mp4")) == ("from the text", "sidecar")


def test_links_are_read_only_while_they_stay_inside_the_source(tmp_path):
    folder, root = tmp_path / "videos/a", tmp_path / "videos"
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "secret.json").write_text(json.dumps({"caption": "outside"}))
    (root / "shared.txt").write_text("inside")
    (folder / "out.txt").symlink_to(tmp_path / "secret")
    (folder / "out.json").symlink_to(tmp_path / "secret.json")
    (folder / "in.txt").symlink_to("../shared.txt")
    (folder / "round.txt").symlink_to("round.txt")
    os.mkfifo(folder / "pipe.txt")
    said = {}
    for name in ("out", "in", "round", "pipe"):
        clip = record(folder / f"{name}.mp4")
        clip.root = root
        said[name] = Sidecar().caption(clip)
        expected = "inside" if name == "in" else ""
        assert caption_beside(folder / f"{name}.mp4", root) == expected
    assert said == {"out": None, "in": ("inside", "sidecar"), "round": None, "pipe": None}
    assert Sidecar().caption(record(folder / "in.mp4")) is None, "whose source is not known, its own folder"


def test_a_curation_does_not_take_a_caption_from_outside_its_source(tmp_path):
    write_film(tmp_path / "videos/a.mp4", pan(1))
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "videos/a.txt").symlink_to(tmp_path / "secret")
    write_film(tmp_path / "videos/b/b.mp4", pan(2))
    (tmp_path / "videos/said").write_text("inside")
    (tmp_path / "videos/b/b.txt").symlink_to("../said")
    job(tmp_path / "videos", executor=Inline(isolated=False)).run(Run(tmp_path / "run"))
    rows = pq.read_table(tmp_path / "run/scores.parquet").to_pylist()
    said = {row["source"]: row["caption"] for row in rows}
    assert said["b/b.mp4"] == "inside" and "outside" not in said["a.mp4"]


def test_kept_clips_without_a_caption_are_counted(tmp_path, capsys):
    for name in ("a", "b", "c"):
        write_film(tmp_path / f"videos/{name}.mp4", pan(ord(name)))
    (tmp_path / "videos/a.TXT").write_text("a pan")
    (tmp_path / "videos/b.caption").write_text("another")
    captioned = job(tmp_path / "videos", executor=Inline(isolated=False))
    captioned.run(Run(tmp_path / "run"))
    rows = [row for row in pq.read_table(tmp_path / "run/scores.parquet").to_pylist() if row["decision"] == "kept"]
    without = sum(row["source"] == "c.mp4" for row in rows)
    assert 0 < without < len(rows) and {row["caption"] for row in rows if row["source"] == "b.mp4"} == {"another"}
    said = " ".join(capsys.readouterr().err.split())
    assert f"{without} of {len(rows)} kept clips have no caption; {without} of them get a line of numbers in" in said


def test_without_a_sidecar_the_numbers_speak(tmp_path):
    clip = record(tmp_path / "a.mp4", scores={"motion": 1.0, "luma_mean": 20.0})
    assert Sidecar().caption(clip) is None
    expected = "a 3.2 s video, 64x48, 12 fps, little motion, dark"
    assert Description().caption(clip) == (expected, "description")
