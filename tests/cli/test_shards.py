"""Tests what `explain SHARD [KEY]` prints and draws of folders of shards."""

import io
import itertools
import json
import re
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save

from nemo_vfm.core.storage.uri import Address
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.shards.shard_paths import named_shards
from nemo_vfm.data.shards.shard_upload import upload_shards
from nemo_vfm.explain.shards.sample_pictures import SheetPicture, blocks, first_frames, sheet
from nemo_vfm.explain.shards.shard_summary import histogram, whole_histogram
from tests.data.conftest import mp4
from tests.support.object_store import BUCKET

SIZES = [(64, 80), (64, 80), (80, 64), (64, 80), (48, 80)]


@pytest.fixture
def films(kitchen) -> Path:
    """Five clips of three sizes in three tars."""
    with ShardWriter(kitchen.folder / "films", samples_per_shard=2) as writer:
        for number, (height, width) in enumerate(SIZES):
            facts = {"width": width, "height": height, "num_frames": 12, "fps": 8.0, "duration_s": 1.5,
                     "bucket": "tall" if height > width else "wide", "caption": "word " * (number + 1)}  # fmt: skip
            members = {"mp4": mp4(12, height, width, seed=number), "txt": facts["caption"].encode(),
                       "json": json.dumps(facts | {"source": f"film {number}"}).encode()}  # fmt: skip
            writer.write(f"clip-{number}", members, facts)
    return Path("films")


@pytest.fixture
def latents(kitchen) -> Path:
    """Two windows of one clip, the second with a number that is none."""
    with ShardWriter(kitchen.folder / "latents") as writer:
        for number in range(2):
            values = torch.arange(4 * 3 * 4 * 6, dtype=torch.bfloat16).reshape(4, 3, 4, 6)
            values[0, 0, 0, 0] = float("nan") if number else 0.0
            index = {"clip": "c", "fps": 8.0, "caption": "", "latent_shape": [4, 3, 4, 6]}
            writer.write(f"c-w{number}", {"latents.safetensors": save({"latents": values})}, index)
    return Path("latents")


def told(kitchen, capsys, *words: object) -> str:
    assert kitchen.main("explain", *map(str, words)) == 0
    return capsys.readouterr().out


def test_a_folder_is_told_in_counts_sizes_and_histograms(kitchen, capsys, films):
    shown = told(kitchen, capsys, films)
    assert "5 samples in 3 shards" in shown
    for line in (r"mp4 +5 ", r"wide +4$", r"tall +1$", r"80x64 +3$", r"8 +5$", r"1\.50 +5 +#+$", r"5 +1 +#+$"):
        assert re.search(rf"^  {line}", shown, re.MULTILINE), line
    found = json.loads(told(kitchen, capsys, films, "--json"))
    assert found["samples"] == found["looked_into"] == 5 and found["buckets"] == {"wide": 4, "tall": 1}
    assert found["members"]["mp4"]["total"] == sum(len(mp4(12, *SIZES[n], seed=n)) for n in range(5))


def test_a_tar_and_anyones_tar_are_told_too(kitchen, capsys, films):
    assert "2 samples in 1 shard, " in told(kitchen, capsys, "films/shard-000001.tar")
    (films / "shards.json").unlink()
    shown = told(kitchen, capsys, films)
    assert "5 samples in 3 shards" in shown and re.search(r"^  80x64 +3$", shown, re.MULTILINE)
    assert "4 samples in 2 shards" in told(kitchen, capsys, "films/shard-{000000..000001}.tar")


def test_a_folder_in_an_object_store_is_told_as_the_one_here(kitchen, capsys, films, failing):
    home = Address(f"s3://{BUCKET}/films")
    upload_shards(films, home)
    here, there = (json.loads(told(kitchen, capsys, where, "--json")) for where in (films, home))
    assert here == there
    shown = told(kitchen, capsys, home, "clip-3", "--out", "store.png")
    assert "h264, 80x64" in shown and Path("store.png").is_file()


def test_a_sample_is_told_by_its_key_or_how_that_begins(kitchen, capsys, films):
    shown = told(kitchen, capsys, films, "clip-2")
    assert "in shard-000001.tar" in shown and "word word word" in shown and '"source": "film 2"' in shown
    assert "h264, 64x80, 12 frames at 8 fps, 1.50 s" in shown
    assert kitchen.main("explain", "films", "clip-") == 2 and "5 samples begin with clip-" in capsys.readouterr().err
    assert kitchen.main("explain", "films", "clip-9") == 2 and "there is no sample clip-9" in capsys.readouterr().err


def test_tensors_are_told_with_ranges_and_what_is_not_finite(kitchen, capsys, latents):
    assert "2 samples of 1 clips" in told(kitchen, capsys, latents)
    shown = told(kitchen, capsys, latents, "c-w0")
    assert "bfloat16" in shown and "4x3x4x6" in shown and "0 to 288" in shown and "not finite" not in shown
    assert "1 not finite" in told(kitchen, capsys, latents, "c-w1")
    found = json.loads(told(kitchen, capsys, latents, "c-w0", "--json"))
    assert found["tensors"][0]["shape"] == [4, 3, 4, 6] and found["tensors"][0]["not_finite"] == 0


def test_the_sheet_shows_the_frames_themselves(kitchen, capsys, films, latents):
    assert told(kitchen, capsys, films, "clip-0", "--out", "one.png").endswith("one.png\n")
    picture = cv2.imread("one.png")[..., ::-1]
    from nemo_vfm.data.video.decode import read_all

    last = cv2.resize(read_all(mp4(12, *SIZES[0], seed=0))[11], (320, 256), interpolation=cv2.INTER_NEAREST)
    top, left = 6 + 256 + 22 + 6, 6 + 3 * 326
    assert np.array_equal(picture[top : top + 256, left : left + 320], last), "eighth of eight frames"
    told(kitchen, capsys, films, "--out", "all.png")
    assert cv2.imread("all.png").shape[1] == 6 + 4 * 326
    told(kitchen, capsys, latents, "c-w0", "--out", "latents.png")
    assert len(np.unique(cv2.imread("latents.png").reshape(-1, 3), axis=0)) > 24
    assert kitchen.main("explain", "latents", "c-w1", "--out", "no.png") == 2 and not Path("no.png").exists()
    assert kitchen.main("explain", "films", "--out", "sheet.jpg") == 2
    assert "must end in .png" in capsys.readouterr().err


def test_characters_of_a_terminal_hold_two_pixels_each():
    picture = np.zeros((4, 8, 3), np.uint8)
    picture[1, 3], picture[2, 5] = (255, 0, 0), (0, 0, 255)
    lines = blocks([SheetPicture(picture, "")], 8)
    assert len(lines) == 2 and all(line.count("▀") == 8 for line in lines)
    cells = [re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+)m\x1b\[48;2;(\d+);(\d+);(\d+)m", line) for line in lines]
    assert cells[0][3] == ("0", "0", "0", "255", "0", "0") and cells[1][5] == ("0", "0", "255", "0", "0", "0")
    assert all(line.endswith("\x1b[0m") for line in lines)
    tall = SheetPicture(np.zeros((400, 10, 3), np.uint8), "x" * 200)
    assert sheet([tall] * 5).shape[1] == 6 + 4 * 326


def test_a_foreign_tar_cannot_steer_the_terminal_or_hide_what_is_damaged(kitchen, capsys):
    Path("theirs").mkdir()
    objects = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    members = {"k.txt": b"\x1b[2Jgone\x07", "k.json": b"{broken", "k.mp4": b"no film", "k.npy": objects}
    with tarfile.open("theirs/a.tar", "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    for words in (["theirs"], ["theirs", "k"]):
        shown = told(kitchen, capsys, *words)
        assert "\x1b" not in shown and "\x07" not in shown
    assert all(f"{name} cannot be read" in shown for name in ("json", "mp4", "npy")) and "[2Jgone" in shown


def test_what_is_no_shard_is_a_component_or_a_sentence(kitchen, capsys):
    Path("empty/deep").mkdir(parents=True)
    Path("run/shards").mkdir(parents=True)
    Path("run/shards/shards.json").write_text("{}")
    for words, sentence in (
        (["empty/deep"], "holds neither shards.json nor a .tar"),
        (["run"], "is not a folder of shards, run/shards is"),
        (["DiT", "key"], "KEY and --out are for shards"),
        (["http://x/y"], "not a supported URL scheme"),
        (["run/shards"], "shards.json has schema"),
    ):
        assert kitchen.main("explain", *words) in (1, 2)
        assert sentence in capsys.readouterr().err
    Path("model").mkdir()
    assert "A slot" in told(kitchen, capsys, "model"), "a folder of that name in the way is no folder of shards"


def test_histograms_count_every_number_once():
    for numbers in ([], [3], [1, 1, 2], list(range(100)), [5, 50, 500]):
        equal = histogram([float(n) for n in numbers])
        assert sum(bar.count for bar in equal) == len(numbers)
        assert all(one.high == pytest.approx(other.low) for one, other in itertools.pairwise(equal))
        assert not numbers or (equal[0].low, equal[-1].high) == pytest.approx((min(numbers), max(numbers)))
        bars = whole_histogram(numbers)
        assert len(bars) <= 8
        assert [bar.count for bar in bars] == [sum(bar.low <= n <= bar.high for n in numbers) for bar in bars]


def test_how_long_a_sample_lasts_is_what_it_says_else_its_frames_by_their_rate(kitchen, capsys):
    """Of frames that do not come evenly only the length is right."""
    says = [{"duration_s": 4.0}, {}, {"num_frames": 0, "duration_s": None}, {"num_frames": None}]
    with ShardWriter(kitchen.folder / "films") as writer:
        for number, facts in enumerate(says):
            index = {"width": 8, "height": 8, "num_frames": 16, "fps": 8.0, "caption": "x"} | facts
            writer.write(f"clip-{number}", {"txt": b"x"}, index)
    found = json.loads(told(kitchen, capsys, "films", "--json"))
    assert sum(bar["count"] for bar in found["duration_s"]) == 3
    assert (found["duration_s"][0]["low"], found["duration_s"][-1]["high"]) == (0.0, 4.0)
    assert [bar["count"] for bar in found["duration_s"] if bar["low"] <= 2.0 < bar["high"]] == [1]


def test_each_picture_of_a_sheet_is_of_the_sample_that_stands_below_it(kitchen):
    """Pictures are as bright as their number says; every third is damaged."""
    with ShardWriter(kitchen.folder / "pictures", samples_per_shard=4) as writer:
        for number in range(10):
            _, data = cv2.imencode(".png", np.full((8, 8, 3), 20 * number, np.uint8))
            writer.write(f"n{number}", {"png": b"no" if number % 3 == 1 else data.tobytes()}, {"caption": "x"})
    for most, places in ((1, [5]), (4, [0, 3, 6, 9]), (10, [0, 2, 3, 5, 6, 8, 9]), (99, [0, 2, 3, 5, 6, 8, 9])):
        frames = first_frames(named_shards([kitchen.folder / "pictures"], None), most)
        assert [(frame.label, int(frame.pixels.mean())) for frame in frames] == [(f"n{n}", 20 * n) for n in places]
