"""Tests that blocks of lines lose nothing, and that any block is a place to go on from."""

import gzip
from pathlib import Path

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.recsys.sources import text_blocks
from nemo_vfm.recsys.sources.log_reading import LogPosition
from nemo_vfm.recsys.sources.text_blocks import TextFiles

TEXTS = [b"one\ntwo\nthree\n", b"", b"\n\nfour\n" + b"x" * 19 + b"\n", b"no newline at the end"]


@pytest.fixture(params=[b"", b"a,b\n"], ids=["no header", "header"])
def header(request) -> bytes:
    return request.param


@pytest.fixture(params=[False, True], ids=["plain", "gzip"])
def files(request, header, tmp_path, monkeypatch) -> TextFiles:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 24)
    paths = [tmp_path / f"{number}.csv{'.gz' * request.param}" for number in range(len(TEXTS))]
    for path, text in zip(paths, TEXTS, strict=True):
        path.write_bytes(gzip.compress(header + text) if request.param else header + text)
    return TextFiles(paths, header.decode().strip())


def test_blocks_hold_all_lines_once_with_their_numbers(files, header):
    lines, number = [], 0
    for block in files.blocks(LogPosition()):
        assert block.num_lines == len(block.text.splitlines()) and block.end.row == number + block.num_lines
        first = block.end.line - block.num_lines + 1
        lines += [(block.file, first + place, line) for place, line in enumerate(block.text.splitlines())]
        number = block.end.row
    expected = [(str(path), place + 1 + bool(header), line)
                for path, text in zip(files.paths, TEXTS, strict=True)
                for place, line in enumerate(text.splitlines())]  # fmt: skip
    assert lines == expected and block.share == 1


def test_reading_from_the_end_of_any_block_gives_the_blocks_after_it(files):
    blocks = [*files.blocks(LogPosition())]
    assert len(blocks) >= 4 and sorted(block.share for block in blocks) == [block.share for block in blocks]
    for number, block in enumerate(blocks):
        assert [*files.blocks(block.end)] == blocks[number + 1 :]


def test_only_ascii_and_a_carriage_return_before_a_newline_stay(tmp_path):
    (tmp_path / "a").write_bytes(b"a\rb\r\nc\r\n\xffd\n")
    (block,) = TextFiles([tmp_path / "a"]).blocks(LogPosition())
    assert block.text == b"a\x01b\r\nc\r\n\x01d\n" and block.num_lines == 3


def test_a_file_of_another_kind_is_refused_with_what_is_there(tmp_path):
    (tmp_path / "a").write_text("user,item\n1,2\n")
    with pytest.raises(UserError, match="begins with 'user,item', but 'a,b' was expected"):
        [*TextFiles([tmp_path / "a"], "a,b").blocks(LogPosition())]
    with pytest.raises(UserError, match=r"there is no file .*none"):
        [*TextFiles([tmp_path / "none"]).blocks(LogPosition())]
    (tmp_path / "a").write_bytes(bytes(text_blocks.BLOCK_BYTES + 1))
    with pytest.raises(DataError, match=r"line 1 of .* is longer than"):
        [*TextFiles([tmp_path / "a"]).blocks(LogPosition())]


def test_a_gzip_file_that_is_cut_or_none_is_named_with_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
    packed = gzip.compress(b"".join(b"%d\n" % (number**5) for number in range(2000)))
    for data in (packed[:-3], packed[: len(packed) // 2], packed[:5], b"no gzip at all"):
        path = Path(tmp_path / "a.gz")
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.gz cannot be read beyond line \d+: .*copied completely"):
            [*TextFiles([path]).blocks(LogPosition())]
