"""Tests what is read from whole image files, and what is said of damaged ones."""

import random

import cv2
import numpy as np
import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.video import image_file, video_info
from nemo_vfm.data.video.image_file import MAX_BYTES, StillImage, _walk_webp, open_image
from tests.support.films import texture
from tests.support.stills import animated_png, animated_webp, bomb_png, coded, turned_jpeg


@pytest.mark.parametrize(("suffix", "name"), [(".jpg", "jpeg"), (".png", "png"), (".webp", "webp")])
def test_a_whole_file_says_its_format_and_gives_its_picture(suffix, name):
    image = open_image(coded(texture(1), suffix))
    assert isinstance(image, StillImage)
    assert (image.format, image.width, image.height, image.is_upright) == (name, 128, 96, True)
    assert np.abs(image.picture_HWC.astype(int) - texture(1)).mean() < (3 if suffix == ".jpg" else 0.01)


def test_jpeg_and_png_that_are_upright_are_kept_byte_for_byte_and_others_become_png_without_loss():
    for suffix, extension in ((".jpg", "jpg"), (".png", "png")):
        data = coded(texture(2), suffix)
        assert open_image(data).as_stored() == (extension, data)
    for data in (coded(texture(2), ".webp"), turned_jpeg(2, 6)):
        image = open_image(data)
        extension, stored = image.as_stored()
        assert extension == "png"
        np.testing.assert_array_equal(open_image(stored).picture_HWC, image.picture_HWC)


def test_an_exif_tag_turns_the_picture_and_a_tag_that_turns_nothing_leaves_the_bytes():
    turned, upright = open_image(turned_jpeg(3, 6)), turned_jpeg(3, 1)
    assert (turned.width, turned.height, turned.is_upright) == (96, 128, False)
    np.testing.assert_array_equal(turned.picture_HWC, np.rot90(open_image(upright).picture_HWC, -1))
    assert open_image(upright).as_stored() == ("jpg", upright)


def test_bytes_behind_the_end_of_a_jpeg_are_no_damage():
    assert open_image(coded(texture(4), ".jpg") + b"a maker's own trailer").width == 128


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_file_that_was_cut_short_is_refused(suffix, share):
    data = coded(texture(5), suffix)
    with pytest.raises(DataError, match="truncated"):
        open_image(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bomb_png(), "60000x60000"),
        (animated_png(6), "animated"),
        (animated_webp(6), "animated"),
        (b"", "not a JPEG, PNG or WebP"),
        (b"<html>not found</html>", "not a JPEG, PNG or WebP"),
        (b"GIF89a" + bytes(40), "not a JPEG, PNG or WebP"),
    ],
)
def test_what_is_no_still_image_is_refused_with_the_reason(data, message):
    with pytest.raises(DataError, match=message):
        open_image(data)


def test_a_file_of_more_bytes_than_any_picture_has_is_not_read(tmp_path):
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # a hole: it takes no room
    with pytest.raises(DataError, match="bytes"):
        open_image(path)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_damaged_bytes_give_a_picture_or_a_sentence(suffix):
    chance = random.Random(7)
    whole = coded(texture(7), suffix)
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 4, 40])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            assert open_image(bytes(data)).picture_HWC.ndim == 3
        except DataError as error:
            assert str(error)


def test_a_lossless_webp_says_its_own_size():
    data = cv2.imencode(".webp", texture(1)[..., ::-1], [cv2.IMWRITE_WEBP_QUALITY, 101])[1].tobytes()
    assert data[12:16] == b"VP8L" and _walk_webp(data) == (128, 96)


def test_a_picture_that_is_larger_than_its_file_says_is_refused(monkeypatch):
    monkeypatch.setattr(image_file, "_decode", lambda data: (np.zeros((4, 30, 3), np.uint8), True))
    monkeypatch.setattr(video_info, "MAX_FRAME_PX", 100)
    with pytest.raises(DataError, match="30x4, expected 1 to 100 pixels"):
        open_image(cv2.imencode(".png", np.zeros((5, 20, 3), np.uint8))[1].tobytes())
