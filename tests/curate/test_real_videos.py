"""Tests real videos of NEMO_VFM_TEST_DATA, among them damaged, rotated, out-of-order and three-frame ones."""

import json
import os
import shutil
from pathlib import Path

import pytest

from nemo_vfm.core.types.job import Run
from tests.support.films import job

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    few = tmp_path_factory.mktemp("few")
    for path in DATA.iterdir():
        if path.name != "sintel_trailer_30s.mp4":  # half of all frames, and the shorter one has the same parts
            shutil.copyfile(path, few / path.name)
    job(few).run(Run(folder))
    return folder


def test_the_ledger_of_real_videos_adds_up(folder):
    ledger = json.loads((folder / "ledger.json").read_text())
    for side in ledger.values():
        out = side["kept"] + sum(side["dropped"].values()) + sum(side["failed"].values())
        assert out == pytest.approx(side["in"], abs=1e-5)


def test_every_hostile_file_has_a_reason(folder):
    files = {file["file"]: file for file in json.loads((folder / "files.json").read_text())}
    for name in ("video_0.mov", "video_90.mov", "video_180.mov", "video_270.mov", "unordered.mov"):
        assert (files[name]["decision"], files[name]["reason"]) == ("dropped", "too_short")
    assert "damaged" in files["corrupted.mp4"]["failed_in_part"]
    for name in ("crush_027.mp4", "flipping_a_pancake.mkv", "sintel_trailer_10s.mp4"):
        assert files[name]["decision"] == "kept"
