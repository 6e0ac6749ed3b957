"""Tests images, alone and among videos, through the whole job: counted, kept as files, trained on."""

import json
import random
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from nemo_vfm.core.errors import NothingKept, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.balance import Balance
from nemo_vfm.curate.caption.caption_types import View
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.encode_shards import EncodeShards
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.execute.process_executor import Processes
from nemo_vfm.curate.redecide import Redecide
from nemo_vfm.curate.restore.crop_letterbox import Letterbox
from nemo_vfm.curate.score.text_overlay import TextOverlay
from nemo_vfm.curate.score.ticker import Ticker
from nemo_vfm.curate.sources.video_source import Folder
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.sources.video_folder import VideoFolder
from nemo_vfm.data.video.image_file import open_image
from nemo_vfm.report import page
from tests.curate.test_encode_shards import _Letters, _Mean
from tests.curate.test_job import outputs, rows
from tests.support.films import job, pan, texture, write_film
from tests.support.stills import animated_png, animated_webp, bomb_png, coded, scene, turned_jpeg, write_still

BUCKETS = Buckets(buckets={"clip": Bucket(64, 48, 9, 6.0), "still": Bucket(64, 48, 1), "tall": Bucket(48, 64, 1)})


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """One image for each thing that can happen, and a film whose frame is one of them."""
    folder = tmp_path_factory.mktemp("pictures")
    for seed, name in enumerate(("photo.jpg", "drawing.png", "scan.webp"), 1):
        write_still(folder / name, seed)
    (folder / "turned.jpg").write_bytes(turned_jpeg(4, 6))
    (folder / "photo.txt").write_text("a photo of a carpet")
    (folder / "photo copy.jpg").write_bytes((folder / "photo.jpg").read_bytes())
    (folder / "photo again.jpg").write_bytes(coded(scene(1)[::2, ::2], ".jpg"))
    (folder / "dark.png").write_bytes(coded(np.zeros((96, 128, 3), np.uint8), ".png"))
    (folder / "cut.jpg").write_bytes(coded(scene(5), ".jpg")[:2000])
    (folder / "bomb.png").write_bytes(bomb_png())
    (folder / "moving.png").write_bytes(animated_png(6))
    (folder / "moving.webp").write_bytes(animated_webp(6))
    (folder / "page.jpg").write_bytes(b"<html>404</html>")
    (folder / "empty.png").write_bytes(b"")
    write_film(folder / "film.mp4", pan(1), pan(8))
    return folder


def both(folder, **changes):
    return job(folder, source=Folder(path=folder, take="both"), **changes)


@pytest.fixture(scope="module")
def done(pictures, tmp_path_factory):
    """The run folder of a finished curation of `pictures`."""
    folder = tmp_path_factory.mktemp("run")
    both(pictures).run(Run(folder))
    return folder


def samples(folder):
    """Name of the source -> shard entry."""
    return {str(entry.index["source"]): entry for entry in ShardSet(folder / "shards").entries if entry.index}


def test_each_image_has_its_fate_and_its_reason(done):
    fates = {file["file"]: file for file in json.loads((done / "files.json").read_text())}
    kept = {name for name, file in fates.items() if file["decision"] == "kept"}
    assert kept == {"photo.jpg", "drawing.png", "scan.webp", "turned.jpg", "film.mp4"}
    dropped = {name: file["reason"] for name, file in fates.items() if file["decision"] == "dropped"}
    assert dropped == {
        "photo copy.jpg": "exact_duplicate", "photo again.jpg": "near_duplicate", "dark.png": "black",
    }  # fmt: skip
    reasons = {"cut.jpg": "truncated", "bomb.png": "60000x60000", "moving.png": "animated", "moving.webp": "animated"}
    reasons |= {"page.jpg": "not a JPEG", "empty.png": "not a JPEG"}
    assert all(fates[name]["decision"] == "failed" and why in fates[name]["reason"] for name, why in reasons.items())


def test_the_ledger_counts_images_as_images_and_gives_them_no_seconds(done):
    ledger = json.loads((done / "ledger.json").read_text())
    images = ledger["images"]
    assert images["in"] == 13 and images["kept"] == 4
    assert sum(images["dropped"].values()) == 3 and sum(images["failed"].values()) == 6
    assert ledger["clips"]["in"] == ledger["clips"]["kept"] == 2
    assert ledger["seconds"]["in"] == ledger["seconds"]["kept"] == pytest.approx(4.0)


def test_an_image_has_no_scores_of_motion_and_time_and_those_of_its_picture(done):
    by_source = {row["source"]: row for row in rows(done)}
    photo = by_source["photo.jpg"]
    absent = ("motion", "motion_peak", "freeze_ratio", "duration_s", "fps")
    assert [photo[name] for name in absent] == [None] * len(absent)
    assert photo["sharpness"] > 5 and photo["luma_mean"] > 0 and photo["similarity"] > 0.9
    assert (photo["caption"], by_source["drawing.png"]["caption"]) == ("a photo of a carpet", "an image, 128x96")


def test_a_picture_of_which_nothing_moves_says_what_writing_covers_and_not_whether_it_is_an_overlay(pictures, tmp_path):
    both(pictures, stages={"text": TextOverlay(), "ticker": Ticker()}, rules={}).run(Run(tmp_path))
    by_source = {row["source"]: row for row in rows(tmp_path)}
    overlays = ("text.overlay", "text.strokes", "ticker.overlay", "ticker.likeness")
    assert [by_source["photo.jpg"][name] for name in overlays] == [None] * 4
    assert [by_source["film.mp4"][name] for name in overlays] == [0] * 4
    assert None not in [by_source["photo.jpg"][f"text.{part}"] for part in ("area", "bottom", "corner")]


def test_an_image_in_a_shard_is_its_file_or_a_png_of_its_pixels(pictures, done):
    shards, found = ShardSet(done / "shards"), samples(done)
    for name, extension in (("photo.jpg", "jpg"), ("drawing.png", "png")):
        assert shards.read(found[name], extension) == (pictures / name).read_bytes()
    for name in ("scan.webp", "turned.jpg"):
        picture = open_image(shards.read(found[name], "png")).picture_HWC
        np.testing.assert_array_equal(picture, open_image(pictures / name).picture_HWC)
    assert (found["turned.jpg"].index["width"], found["turned.jpg"].index["height"]) == (96, 128)
    about = json.loads(shards.read(found["photo.jpg"], "json"))
    assert about["num_frames"] == 1 and "duration_s" not in about and "audio" not in about


def test_images_and_clips_train_from_the_same_shards(done):
    data = ShardData(shards=done / "shards", batch_size=1, buckets=BUCKETS, shuffle=False)
    data.start(seed=0, first_batch=0)
    batches = islice(data.train_dataloader(), data.num_train_samples())
    shapes = Counter(tuple(batch.video_BCTHW.shape[1:]) for batch in batches)
    assert shapes == {(3, 9, 48, 64): 2, (3, 1, 48, 64): 3, (3, 1, 64, 48): 1}


def test_the_encode_step_makes_latents_of_both(done, tmp_path):
    encoder = EncodeShards(shards=done / "shards", codec=_Mean(), text_encoder=_Letters(), buckets=BUCKETS)
    encoder.run(Run(tmp_path / "latents"))
    report = json.loads((tmp_path / "latents/encode.json").read_text())
    assert report["by_bucket"] == {"clip": 2, "still": 3, "tall": 1} and not report["failed"]


@pytest.mark.parametrize("executor", [Inline(isolated=False), Processes(workers=2)], ids=["inline", "processes"])
def test_results_do_not_depend_on_who_works(pictures, done, tmp_path, executor):
    both(pictures, executor=executor).run(Run(tmp_path))
    assert outputs(tmp_path) == outputs(done)


def test_a_second_run_does_nothing_and_what_was_lost_is_made_again(pictures, tmp_path):
    both(pictures, keep_clips=True).run(Run(tmp_path))
    before = outputs(tmp_path)
    assert both(pictures, keep_clips=True).run(Run(tmp_path)).did_nothing
    lost = next((tmp_path / "work/clips").glob("*.image.png"))
    lost.unlink()
    (tmp_path / "made_of.json").unlink()
    both(pictures, keep_clips=True).run(Run(tmp_path))
    assert lost.is_file() and outputs(tmp_path) == before


def test_a_still_of_a_film_does_not_take_its_place(tmp_path):
    films = tmp_path / "films"
    films.mkdir()
    write_film(films / "film.mp4", pan(1))
    large = np.repeat(np.repeat(texture(1), 3, axis=0), 3, axis=1)
    (films / "poster.png").write_bytes(coded(large, ".png"))
    both(films).run(Run(tmp_path / "run"))
    assert {row["decision"] for row in rows(tmp_path / "run")} == {"kept"}


def test_a_rule_that_keeps_by_motion_says_nothing_of_images_and_its_other_half_does(pictures, tmp_path):
    rule = Rule(keep="motion_peak > 1 and sharpness > 5 and num_frames > 4")
    both(pictures, rules={"good": rule}).run(Run(tmp_path))
    fates = {row["source"]: row["rule"] for row in rows(tmp_path)}
    assert (fates["photo.jpg"], fates["dark.png"]) == (None, "good")


def test_deciding_again_gives_the_ledger_that_a_curation_would(pictures, done, tmp_path):
    rules = {"bright": Rule(score="luma_mean", above=60.0), "too_short": Rule(score="duration_s", below=1.0)}
    both(pictures, rules=rules).run(Run(tmp_path / "whole"))
    Redecide(curated=done, rules=rules).run(Run(tmp_path / "again"))
    for name in ("ledger.json", "survival.json"):
        ledgers = [json.loads((tmp_path / run / name).read_text()) for run in ("whole", "again")]
        ledgers[0].pop("audio", None)
        assert ledgers[0] == ledgers[1]


def test_bars_are_cut_off_an_image_which_is_then_a_png(tmp_path):
    barred = scene(3)
    barred[:16] = barred[-16:] = 0
    (tmp_path / "in").mkdir()
    (tmp_path / "in/barred.jpg").write_bytes(coded(barred, ".jpg"))
    both(tmp_path / "in", restore={"letterbox": Letterbox()}).run(Run(tmp_path / "run"))
    (entry,) = ShardSet(tmp_path / "run/shards").entries
    picture = open_image(ShardSet(tmp_path / "run/shards").read(entry, "png"))
    assert picture.height <= 66 and (entry.index["width"], entry.index["height"]) == (picture.width, picture.height)
    assert list((tmp_path / "run/restored").glob("*.jpg"))


def test_only_what_is_asked_for_is_taken_and_what_is_not_is_said(pictures, tmp_path):
    assert [found.name for found in Folder(path=pictures).files()] == ["film.mp4"]
    assert len(Folder(path=pictures, take="images").files()) == 13
    write_still(tmp_path / "a.png", 1)
    with pytest.raises(UserError, match=r"holds 1 files of the other kind: source\.take=both"):
        Folder(path=tmp_path).files()
    with pytest.raises(ValueError, match="take is 'films'"):
        Folder(path=tmp_path, take="films")


def test_images_of_which_none_is_kept_are_an_error_that_says_why(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/noise.jpg").write_bytes(random.Random(0).randbytes(900))
    with pytest.raises(NothingKept, match="1 images from 1 files"):
        both(tmp_path / "in").run(Run(tmp_path / "run"))


def test_the_report_shows_images(done):
    text = page.write(done).read_text()
    assert "images kept" in text and ">images<" in text.replace(" ", "").replace("\n", "")


def test_a_model_is_shown_the_picture_and_a_long_side_is_made_smaller(tmp_path):
    path = write_still(tmp_path / "id.image.png", 9)
    view = View("key", path, (0, 1), whole=True, fps=1.0)
    assert view.is_image and view.pictures(8, 64).shape == (1, 48, 64, 3)
    np.testing.assert_array_equal(view.pictures(8, 768)[0], scene(9))


def test_images_are_balanced_by_their_own_buckets(pictures, tmp_path):
    balance = Balance(by="bucket", caps={"still": 1}, buckets=BUCKETS)
    both(pictures, balance=balance).run(Run(tmp_path))
    groups = json.loads((tmp_path / "balance.json").read_text())["groups"]
    assert {name: (group["clips"], group["kept"]) for name, group in groups.items()} == {
        "clip": (2, 2), "still": (3, 1), "tall": (1, 1),
    }  # fmt: skip
    assert json.loads((tmp_path / "ledger.json").read_text())["images"]["dropped"]["balance"] == 2


class _Refuses:
    def look(self, frames_THWC):
        raise KeyError("nothing")

    def columns(self):
        return ()


def test_an_image_that_a_restorer_cannot_cope_with_fails_alone(tmp_path):
    (tmp_path / "in").mkdir()
    write_still(tmp_path / "in/a.png", 1)
    inline = Inline(isolated=False)
    with pytest.raises(NothingKept, match="restorer odd"):
        both(tmp_path / "in", restore={"odd": _Refuses()}, executor=inline).run(Run(tmp_path / "run"))


def test_images_of_16_bits_are_counted_and_said_where_they_become_8(tmp_path, capsys):
    folder = tmp_path / "pictures"
    folder.mkdir()
    write_still(folder / "plain.png", 1)
    for seed in (2, 3):
        (folder / f"deep {seed}.png").write_bytes(coded(scene(seed).astype(np.uint16) * 257, ".png"))
    for time in ("first", "again"):
        both(folder).run(Run(tmp_path / time))
        assert "2 images have 16 bits a channel" in " ".join(capsys.readouterr().err.split())
    readers: list[ListedData] = [ShardData(shards=tmp_path / "first/shards", batch_size=1, buckets=BUCKETS)]
    readers += [
        VideoFolder(path=folder, index=tmp_path / "index.json", batch_size=1, buckets=BUCKETS) for _ in range(2)
    ]
    for reader in readers:
        reader.start(seed=0, first_batch=0)
        assert " ".join(capsys.readouterr().err.split()).count("2 images have 16 bits a channel") == 1
