"""Tests each exported layout with a reader written from the facts of the loader that it is for."""

import json
import random
from pathlib import Path

import av
import cv2
import pytest

from nemo_vfm.core.errors import NothingKept, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.sink.cosmos_curate import CosmosCurate
from nemo_vfm.curate.sink.cosmos_predict2 import CosmosPredict2
from nemo_vfm.curate.sink.dfm_sink import Dfm
from nemo_vfm.curate.sink.energon_sink import Energon
from nemo_vfm.curate.sink.export import Export
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter, verify
from tests.support.films import FPS, HEIGHT, WIDTH, pan, write_film

LENGTHS = (9, 12, 13, 30)  # frames


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Four clips of different lengths, the last without a caption, and a sample that is no film."""
    folder = tmp_path_factory.mktemp("shards")
    with ShardWriter(folder / "shards") as writer:
        for place, frames in enumerate(LENGTHS):
            film = write_film(folder / "film.mp4", pan(place, frames)).read_bytes()
            caption = "" if frames == 30 else f"clip {place} of \N{GREEK SMALL LETTER ALPHA}"
            facts = {"width": WIDTH, "height": HEIGHT, "num_frames": frames, "fps": float(FPS), "caption": caption}
            clip = {"pts_start": 512 * 6, "pts_end": 512 * (6 + frames), "time_base": "1/6144"}
            members = {"mp4": film, "txt": caption.encode(), "json": json.dumps(clip).encode()}
            members |= {"text.safetensors": b"embedding"} if place == 3 else {}
            writer.write(f"{place:032x}", members, {**facts, "source": f"{place % 2}.mp4"})
        writer.write("picture", {"png": b"png"}, {"width": 8, "height": 8, "num_frames": 1, "fps": 1.0})
    return folder / "shards"


def export(shards, folder, sink):
    """Run it, and read what export.json says."""
    outcome = Export(shards=shards, sink=sink).run(Run(folder))
    return outcome, json.loads((folder / "export.json").read_text())


def frames_of(path):
    with av.open(str(path)) as film:
        return sum(1 for _ in film.decode(video=0))


def test_predict2_finds_every_clip_that_it_can_cut_a_window_out_of(shards, tmp_path):
    _, report = export(shards, tmp_path, CosmosPredict2(num_frames=12))
    assert report["left_out"] == {"no mp4 in the shard": 1, "shorter than 13 frames": 2}
    root = tmp_path / "dataset"
    for meta in sorted((root / "metas").glob("*.txt")):  # what its own script does, with something else for T5
        (root / "t5_xxl").mkdir(exist_ok=True)
        (root / "t5_xxl" / meta.name.replace(".txt", ".pickle")).write_text(meta.read_text().strip())
    found = [path for path in sorted((root / "videos").iterdir()) if path.name.endswith(".mp4")
             and (root / "t5_xxl" / path.name.replace(".mp4", ".pickle")).exists()]  # fmt: skip
    assert [path.stem for path in found] == [f"{2:032x}", f"{3:032x}"]
    for path in found:
        first = random.Random(0).randrange(0, frames_of(path) - 12)  # randint(0, 0) raises there
        assert first >= 0
    assert (root / "metas" / f"{2:032x}.txt").read_text() == "clip 2 of \N{GREEK SMALL LETTER ALPHA}"
    assert (root / "t5_xxl" / f"{3:032x}.safetensors").read_bytes() == b"embedding"
    command = f"python -m scripts.get_t5_embeddings --dataset_path {root}"
    assert command in (root / "README.txt").read_text() and any(command in note for note in report["notes"])
    assert any("1 of 2 clips have no caption" in note for note in report["notes"])


def test_dfm_finds_a_caption_beside_every_film(shards, tmp_path):
    _, report = export(shards, tmp_path, Dfm(min_frames=10))
    assert report["left_out"] == {"no mp4 in the shard": 1, "shorter than 10 frames": 1}
    root, items = tmp_path / "dataset", []
    for entry in sorted(path for path in root.iterdir() if path.suffix.lower() == ".mp4"):
        film = cv2.VideoCapture(str(entry))
        last = max(0, int(film.get(cv2.CAP_PROP_FRAME_COUNT)) - 1)
        caption = json.loads(entry.with_suffix(".json").read_text())["caption"]
        assert isinstance(caption, str)
        items.append({"file_name": entry.name, "width": int(film.get(cv2.CAP_PROP_FRAME_WIDTH)),
                      "height": int(film.get(cv2.CAP_PROP_FRAME_HEIGHT)), "start_frame": 0, "end_frame": last,
                      "caption": caption})  # fmt: skip
    assert items == json.loads((root / "meta.json").read_text()) and len(items) == 3


@pytest.mark.parametrize(("sink", "captioner", "version"), [
    (CosmosCurate(), "qwen", "v0"), (CosmosCurate(captioner="vila", version="v1"), "vila", "v1"),
])  # fmt: skip
def test_cosmos_curate_finds_its_clips_by_the_summary(shards, tmp_path, sink, captioner, version):
    export(shards, tmp_path, sink)
    root, seen = tmp_path / "dataset", []
    for video, value in json.loads((root / "summary.json").read_text()).items():
        for name in value["clips"]:
            meta = json.loads((root / "metas" / version / f"{name}.json").read_text())
            film = Path(meta["clip_location"])
            assert meta["valid"] and film.is_absolute() and film.stat().st_size == meta["num_bytes"]
            assert frames_of(film) == meta["num_frames"] and meta["source_video"] == video
            assert meta["span_uuid"] == name and [len(part) for part in name.split("-")] == [8, 4, 4, 4, 12]
            seen.append((meta["duration_span"], meta["windows"][0][f"{captioner}_caption"]))
    assert len(seen) == 4 and seen[0] == ([0.5, 1.25], "clip 0 of \N{GREEK SMALL LETTER ALPHA}")


def test_energon_reads_every_sample_of_every_part(shards, tmp_path):
    energon = pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")
    export(shards, tmp_path, Energon(samples_per_shard=2))
    root = tmp_path / "dataset"
    assert len(ShardSet(root)) == 4 and not verify(root)

    class Raw(energon.DefaultTaskEncoder):
        decoder = None
        cookers = (energon.Cooker(energon.stateless(lambda sample: dict(sample))),)

        def batch(self, samples):
            return samples

    config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = energon.get_train_dataset(
        root, batch_size=1, worker_config=config, task_encoder=Raw(), repeat=False, shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )  # fmt: skip
    films = {sample["__key__"]: sample["mp4"] for batch in energon.get_loader(dataset) for sample in batch}
    keys = {key.rpartition("/")[2] for key in films}
    assert keys == {f"{place:032x}" for place in range(4)}


def test_the_part_held_out_is_said(shards, tmp_path):
    _, report = export(shards, tmp_path, Energon(val_share=0.5))
    (note,) = [note for note in report["notes"] if note.startswith("parts: ")]
    assert sum(int(word) for word in note.replace(",", "").split() if word.isdigit()) == 4


@pytest.mark.parametrize("sink", [CosmosPredict2(num_frames=12), Dfm(), Energon(), CosmosCurate()])
def test_every_clip_is_written_or_left_out_and_the_second_time_nothing_is_done(shards, sink, tmp_path):
    first, report = export(shards, tmp_path, sink)
    assert report["clips"] == report["written"] + sum(report["left_out"].values()) == 5
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "dataset").rglob("*")}
    second, again = export(shards, tmp_path, sink)
    assert second.did_nothing and second.summary == first.summary and again == report
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "dataset").rglob("*")} == before


def test_other_settings_replace_the_whole_folder(shards, tmp_path):
    export(shards, tmp_path, Dfm())
    export(shards, tmp_path, Dfm(min_frames=13))
    assert len(list((tmp_path / "dataset").glob("*.mp4"))) == 2


def test_nothing_that_fits_is_an_error(shards, tmp_path):
    with pytest.raises(NothingKept, match="shorter than 94 frames': 4"):
        export(shards, tmp_path, CosmosPredict2())
    assert not (tmp_path / "export.json").exists()


def test_a_folder_that_is_not_finished_is_refused(tmp_path):
    (tmp_path / "half").mkdir()
    with pytest.raises(UserError, match=r"no shards\.json"):
        export(tmp_path / "half", tmp_path / "out", Dfm())


@pytest.mark.parametrize("make", [lambda: CosmosPredict2(num_frames=0), lambda: Dfm(min_frames=0),
                                  lambda: Energon(val_share=1.0), lambda: CosmosCurate(version="../v0")])  # fmt: skip
def test_a_layout_that_cannot_be_is_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()


@pytest.mark.parametrize("sink", [CosmosPredict2(num_frames=1), Dfm(), CosmosCurate()])
@pytest.mark.parametrize(
    ("index", "told", "written"),
    [
        ({"fps": 0}, b"{}", 1), ({"fps": "fast"}, b"{}", 1), ({"num_frames": None}, b"{}", 1),
        ({"width": -2}, b"{}", 1),
        ({}, b'{"pts_start": 0, "pts_end": 1, "time_base": "1/0"}', 2), ({}, b"[1]", 2), ({}, b"\xff", 2),
    ],
)  # fmt: skip
def test_a_strangers_odd_numbers_cost_their_own_clip_at_most(sink, index, told, written, tmp_path):
    good = {"width": 8, "height": 8, "num_frames": 9, "fps": 9.0, "caption": "a"}
    with ShardWriter(tmp_path / "shards") as writer:
        writer.write("0" * 32, {"mp4": b"film", "json": b"{}"}, good)
        writer.write("1" * 32, {"mp4": b"film", "json": told}, good | index)
    _, report = export(tmp_path / "shards", tmp_path, sink)
    assert report["written"] == written
    assert report["left_out"] == ({} if written == 2 else {"a damaged index": 1})


def test_what_is_read_is_never_replaced(tmp_path):
    facts = {"width": 8, "height": 8, "num_frames": 9, "fps": 9.0}
    with ShardWriter(tmp_path / "dataset") as writer:
        writer.write("0" * 32, {"mp4": b"film"}, facts)
    with pytest.raises(UserError, match="another run_dir"):
        export(tmp_path / "dataset", tmp_path, Dfm())
    assert not verify(tmp_path / "dataset")


def test_weights_that_a_layout_cannot_tell_are_said(tmp_path):
    facts = {"width": 8, "height": 8, "num_frames": 9, "fps": 9.0}
    with ShardWriter(tmp_path / "shards") as writer:
        for place in (1, 2, 3):
            writer.write(f"{place:032x}", {"mp4": b"film"}, facts | {"weight": place})
    _, report = export(tmp_path / "shards", tmp_path, Dfm())
    assert any(note.startswith("2 clips have a weight") for note in report["notes"])
