"""Tests that images lose their stripes and nothing else: type, pages, descriptions and clean pages stay."""

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.restore.destripe_images import DestripeImages
from nemo_vfm.report.page import render
from tests.support.striped import microscope

SIDE = 192


def psnr(picture, clean):
    """In dB, of the clean picture's own range."""
    error = np.mean((picture.astype(float) - clean) ** 2)
    return float(20 * np.log10(np.ptp(clean.astype(float)) / np.sqrt(error)))


def gain(after, before, clean):
    return psnr(after, clean) - psnr(before, clean)


def destripe(folder, source, **settings):
    """The run's outcome; its folder is made."""
    folder.mkdir(exist_ok=True)
    return DestripeImages(input=source, **settings).run(Run(folder))


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def tiff():
    pytest.importorskip("imagecodecs")
    return pytest.importorskip("tifffile")


@pytest.fixture(scope="module")
def spots():
    """Clean and striped, of 16 bits."""
    return microscope(0, SIDE)


@pytest.mark.parametrize("scale", [1, 1 / 8192, None])
def test_png_and_all_other_chunks_of_it_stay_but_for_stripes(tmp_path, spots, scale):
    clean, striped = spots
    if scale != 1:
        clean, striped = ((one / 16).astype(np.uint8) for one in (clean, striped))
    if scale is None:
        clean, striped = (np.dstack([one, one // 2, one]) for one in (clean, striped))
    data = cv2.imencode(".png", striped)[1].tobytes()
    text = b"\x00\x00\x00\x09pHYs" + b"\x00\x00\x0b\x13\x00\x00\x0b\x13\x01" + b"\x00\x9a\x9c\x18"
    source = tmp_path / "in" / "deep" / "a.png"
    source.parent.mkdir(parents=True)
    source.write_bytes(data[:33] + text + data[33:])
    outcome = destripe(tmp_path / "run", tmp_path / "in")
    written = tmp_path / "run" / "images" / "deep" / "a.png"
    after = cv2.imread(str(written), cv2.IMREAD_UNCHANGED)
    assert after.dtype == striped.dtype and after.shape == striped.shape
    assert gain(after, striped, clean) > 8
    assert written.read_bytes()[33:54] == text
    assert outcome.figures["destriped"] == 1 and outcome.figures["failed"] == 0
    assert destripe(tmp_path / "run", tmp_path / "in").did_nothing
    page = render(tmp_path / "run")
    assert "deep/a.png" in page and "the difference at higher contrast" in page and "data:image/jpeg" in page


def test_an_image_without_stripes_keeps_every_byte_and_what_is_left_out_is_said(tmp_path, spots, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    cv2.imwrite(str(folder / "clean.png"), spots[0])
    (folder / "notes.txt").write_text("a note")
    (folder / "cut.png").write_bytes((folder / "clean.png").read_bytes()[:-40])
    outcome = destripe(tmp_path / "run", folder)
    assert files_of(tmp_path / "run" / "images") == {"clean.png": (folder / "clean.png").read_bytes()}
    assert outcome.figures["failed"] == 1 and "truncated" in outcome.summary
    said = " ".join(capsys.readouterr().err.split())
    assert "1 .txt" in said and "cut.png" in said


def test_an_image_of_any_name_is_written_under_that_name(tmp_path, spots):
    (tmp_path / "in").mkdir()
    picture = cv2.imencode(".png", spots[1])[1].tobytes()
    for name in (b"caf\xe9.png", b"n" * 251 + b".png"):
        Path(os.fsdecode(os.fsencode(tmp_path / "in") + b"/" + name)).write_bytes(picture)
    outcome = destripe(tmp_path / "run", tmp_path / "in")
    assert outcome.figures["failed"] == 0 and outcome.figures["files"] == 2
    assert files_of(tmp_path / "run/images").keys() == files_of(tmp_path / "in").keys()


def test_no_images_and_none_that_can_be_read_end_in_an_error(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match="no TIFF or PNG"):
        destripe(tmp_path / "run", tmp_path / "in")
    (tmp_path / "in" / "a.png").write_bytes(b"no picture")
    with pytest.raises(NothingKept, match=r"a\.png"):
        destripe(tmp_path / "run", tmp_path / "in")
    with pytest.raises(ValueError, match="mode=static"):
        DestripeImages(input=tmp_path, stack=True)


STORED = [
    ("uint8", {}), ("uint16", {"bigtiff": True}), ("float32", {"byteorder": ">"}),
    ("uint16", {"compression": "lzw", "predictor": True}), ("float32", {"compression": "zlib", "predictor": True}),
    ("uint16", {"compression": "zlib", "predictor": True, "byteorder": ">"}), ("float32", {"tile": (80, 48)}),
    ("uint16", {"compression": "zstd", "tile": (64, 64)}), ("uint8", {"compression": "lzw", "rowsperstrip": 17}),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "stored"), STORED, ids=lambda one: " ".join(one) if isinstance(one, dict) else one)
def test_a_tiff_keeps_its_type_its_pages_and_every_tag_but_those_of_the_data(tmp_path, tiff, spots, stored, dtype):
    factor = 1 / 16 if dtype == "uint8" else 1
    clean, striped = ((one * factor).astype(dtype) for one in spots)
    source = tmp_path / "a.tif"
    options = dict(stored)
    opening = {key: options.pop(key) for key in ("bigtiff", "byteorder") if key in options}
    with tiff.TiffWriter(source, **opening) as writer:
        for page in (striped, clean, striped):
            writer.write(
                page, resolution=(4321, 1234), description="80 % \u00b5m".encode(), metadata=None,
                software="scope", contiguous=False, **options,
            )  # fmt: skip
    outcome = destripe(tmp_path / "run", source)
    assert outcome.figures | {"held_pixels": 0} == {
        "files": 1, "failed": 0, "pages": 3, "destriped": 2, "held_pixels": 0,
    }  # fmt: skip
    with tiff.TiffFile(source) as before, tiff.TiffFile(tmp_path / "run" / "images" / "a.tif") as after:
        assert (before.is_bigtiff, before.byteorder, len(before.pages)) == (
            after.is_bigtiff, after.byteorder, len(after.pages),
        )  # fmt: skip
        for old, new in zip(before.pages, after.pages, strict=True):
            data = ("StripOffsets", "StripByteCounts", "TileOffsets", "TileByteCounts")
            assert {t.name: t.value for t in old.tags if t.name not in data} == {
                t.name: t.value for t in new.tags if t.name not in data
            }
        assert np.array_equal(after.pages[1].asarray(), clean)
        for place in (0, 2):
            pixels = after.pages[place].asarray()
            assert pixels.dtype == dtype and gain(pixels, striped, clean) > 8


@pytest.mark.parametrize("kind", ["imagej", "one description of many pages", "ome", "rgb", "planar", "pyramid"])
def test_what_microscopes_write_comes_back_as_it_was_but_for_stripes(tmp_path, tiff, spots, kind):
    clean, striped = spots
    source, stack = tmp_path / "a.ome.tif", np.stack([striped, striped])
    if kind in ("imagej", "one description of many pages"):
        tiff.imwrite(source, stack, imagej=True, metadata={"spacing": 0.3, "unit": "um"}, truncate=kind != "imagej")
    elif kind == "ome":
        tiff.imwrite(source, stack, ome=True, metadata={"axes": "ZYX", "PhysicalSizeX": 0.2, "PhysicalSizeXUnit": "µm"})
    elif kind == "pyramid":
        with tiff.TiffWriter(source) as writer:
            writer.write(striped, subifds=1)
            writer.write(striped[::2, ::2], subfiletype=1)
    else:
        planar = kind == "planar"
        colours = np.stack([striped, striped // 2, striped], axis=0 if planar else -1)
        tiff.imwrite(source, colours, photometric="rgb", planarconfig="separate" if planar else "contig")
    destripe(tmp_path / "run", source)
    with tiff.TiffFile(source) as old, tiff.TiffFile(tmp_path / "run" / "images" / "a.ome.tif") as new:
        before, after = old.asarray(), new.asarray()
        assert old.ome_metadata == new.ome_metadata and old.imagej_metadata == new.imagej_metadata
        assert before.shape == after.shape and old.series[0].axes == new.series[0].axes
        if kind == "pyramid":
            level = new.pages[0].pages[0].asarray()
            assert gain(level, striped[::2, ::2], cv2.resize(clean, (SIDE // 2,) * 2, interpolation=cv2.INTER_AREA)) > 5
    halved = {"rgb": clean // 2, "planar": clean // 2}.get(kind, clean)
    view = {"rgb": np.s_[..., 1], "planar": np.s_[1]}.get(kind, np.s_[...])
    truth = np.broadcast_to(halved, after[view].shape)
    assert gain(after[view], before[view], truth) > 8


def test_what_cannot_be_written_back_is_named_and_left_out(tmp_path, tiff):
    folder = tmp_path / "in"
    folder.mkdir()
    tiff.imwrite(folder / "wide.tif", np.zeros((64, 64), np.uint32))
    tiff.imwrite(folder / "lossy.tif", np.zeros((64, 64), np.uint8), compression="jpeg")
    tiff.imwrite(folder / "good.tif", np.zeros((64, 64), np.uint8))
    (folder / "broken.tif").write_bytes((folder / "good.tif").read_bytes()[:100])
    outcome = destripe(tmp_path / "run", folder)
    assert set(files_of(tmp_path / "run" / "images")) == {"good.tif"}
    assert outcome.figures["failed"] == 3
    told = {
        one["name"]: one.get("failed", "")
        for one in json.loads((tmp_path / "run" / "images.json").read_text())["files"]
    }
    assert "uint32" in told["wide.tif"] and "JPEG" in told["lossy.tif"] and told["broken.tif"]


def noisy_stack(clean, count):
    """Pages whose scene moves while the stripes stay, and the scenes."""
    random = np.random.default_rng(5)
    scenes = np.stack([np.roll(clean, 31 * n, axis=(0, 1)) for n in range(count)]).astype(float)
    levels = random.normal(0, 60, clean.shape[1])
    return scenes.astype(np.uint16), np.clip(scenes + 200 + levels, 0, 4095).round().astype(np.uint16)


def test_static_stripes_of_pages_of_two_sizes_are_refused_by_name(tmp_path, spots):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, page in (("a", spots[1]), ("b", spots[1][:100])):
        cv2.imwrite(str(folder / f"{name}.png"), page)
    with pytest.raises(DataError, match=r"b\.png: page 0 differs from the first in size"):
        destripe(tmp_path / "run", folder, mode="static", stack=True)


@pytest.mark.parametrize("stack", [False, True])
def test_stripes_of_all_pages_are_the_same_in_static_mode_and_a_page_without_them_stays(tmp_path, spots, stack):
    scenes, striped = noisy_stack(spots[0], 6)
    folder = tmp_path / "in"
    folder.mkdir()
    pages = [*striped, scenes[2] + 200]
    if stack:
        for number, page in enumerate(pages):
            cv2.imwrite(str(folder / f"{number}.png"), page)
    else:
        pytest.importorskip("tifffile").imwrite(folder / "a.tif", np.stack(pages))
    outcome = destripe(tmp_path / "run", folder, mode="static", stack=stack)
    assert outcome.figures["destriped"] == 6 and outcome.figures["pages"] == 7
    written = tmp_path / "run" / "images"
    if stack:
        after = [cv2.imread(str(written / f"{n}.png"), cv2.IMREAD_UNCHANGED) for n in range(7)]
    else:
        after = list(pytest.importorskip("tifffile").imread(written / "a.tif"))
    assert np.array_equal(after[6], pages[6])
    taken = [before.astype(int) - one for before, one in zip(pages[:6], after[:6], strict=True)]
    assert np.ptp(np.stack(taken), axis=0).max() <= 1  # rounding
    assert min(gain(one, page, scene + 200) for one, page, scene in zip(after, pages[:6], scenes, strict=False)) > 8


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(tmp_path, spots):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        cv2.imwrite(str(folder / f"{number}.png"), np.roll(spots[1], number, axis=0))
    destripe(tmp_path / "whole", folder)
    run = tmp_path / "killed"
    run.mkdir()
    child = os.fork()
    if child == 0:
        job = DestripeImages(input=folder)
        job._destripe, inner = lambda *given: os._exit(9) if given[2].parent.exists() and len(
            list((run / "images").glob("[0-9].png"))
        ) == 2 else inner(*given), job._destripe  # fmt: skip
        job.run(Run(run))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    stamp = (run / "images" / "0.png").stat().st_mtime_ns
    destripe(run, folder)
    assert (run / "images" / "0.png").stat().st_mtime_ns == stamp
    assert files_of(run / "images") == files_of(tmp_path / "whole" / "images")
    assert files_of(run / "restored") == files_of(tmp_path / "whole" / "restored")
