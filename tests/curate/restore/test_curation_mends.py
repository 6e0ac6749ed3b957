"""Tests that a curation with restorers mends a striped video and encodes a clean one to the same bytes."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.execute.process_executor import Processes
from nemo_vfm.curate.restore.crop_letterbox import Letterbox
from nemo_vfm.curate.restore.destripe import Destripe
from nemo_vfm.data.video.decode import read_all
from tests.support.films import job, pan, write_film
from tests.support.striped import leaves, psnr_db, with_stripes

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"


def film(seed):
    grey = leaves(seed)[:96].round().astype(np.uint8) // 2 + 60
    return np.stack([np.roll(grey, 3 * index, axis=1)[:, :128] for index in range(16)])[..., None].repeat(3, -1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    source, films = tmp_path_factory.mktemp("films"), {"clean": film(0)}
    films["striped"] = with_stripes(film(1), theta_deg=0)
    films["barred"] = film(2)
    films["barred"][:, :12], films["barred"][:, 84:] = 0, 0
    for name, frames in films.items():
        write_film(source / f"{name}.mp4", frames, crf=4)
    restore = {"letterbox": Letterbox(), "destripe": Destripe()}
    found, executor = {}, Processes(workers=1)  # each child imports torch for the stripes
    for name, restorers in (("as_it_is", {}), ("mended", restore)):
        folder = tmp_path_factory.mktemp(name)
        job(source, restore=restorers, keep_clips=True, rules={}, captions={}, executor=executor).run(Run(folder))
        found[name] = {row["source"].removesuffix(".mp4"): row for row in rows(folder)}
        for row in found[name].values():
            (row["media"],) = folder.glob(f"**/{row['clip_id']}-*.mp4")
    return found


def rows(folder):
    return parquet.read_table(folder / "scores.parquet").to_pylist()


@pytest.mark.slow
def test_a_clean_film_is_encoded_to_the_very_same_bytes(folders):
    as_it_is, mended = (folders[name]["clean"]["media"].read_bytes() for name in ("as_it_is", "mended"))
    assert as_it_is == mended


def test_a_striped_film_is_mended_and_says_so(folders):
    row = folders["mended"]["striped"]
    assert row["stripe_excess_db"] > 8 > 5 > row["stripe_excess_after_db"]
    striped, mended = (read_all(folders[name]["striped"]["media"]) for name in ("as_it_is", "mended"))
    assert psnr_db(mended, film(1)) > psnr_db(striped, film(1)) + 3


def test_bars_are_cut_off_and_the_box_is_in_the_table(folders):
    row = folders["mended"]["barred"]
    assert (row["letterbox.top"], row["letterbox.height"]) == (12, 72)
    assert read_all(row["media"]).shape[1:3] == (72, 128)
    assert json.loads(row["media"].with_suffix(".json").read_text())["restored"] == ["letterbox"]


@pytest.mark.parametrize("executor", [Inline(), Processes(workers=2)])
def test_all_shots_of_a_file_are_cropped_alike(tmp_path, executor):
    shots = [pan(1, 30, 3), pan(2, 24, 3) // 3, pan(3, 24, 3)]
    for shot, bar_px in zip(shots, (12, 14, 10), strict=True):
        shot[:, :bar_px], shot[:, 96 - bar_px :] = 0, 0
    (tmp_path / "films").mkdir()
    write_film(tmp_path / "films" / "a.mp4", *shots, crf=4)
    job(tmp_path / "films", restore={"letterbox": Letterbox()}, rules={}, captions={}, executor=executor).run(
        Run(tmp_path / "run")
    )
    found = rows(tmp_path / "run")
    assert len(found) == 3
    assert {(row["letterbox.top"], row["letterbox.height"], row["height"]) for row in found} == {(10, 76, 76)}


@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
@pytest.mark.soak
def test_the_clips_of_a_trailer_have_one_height(tmp_path):
    (tmp_path / "films").mkdir()
    shutil.copy(DATA / "sintel_trailer_30s.mp4", tmp_path / "films" / "a.mp4")
    job(tmp_path / "films", restore={"letterbox": Letterbox()}, rules={}, captions={}).run(Run(tmp_path / "run"))
    assert len({row["height"] for row in rows(tmp_path / "run")}) == 1
