"""Tests that token folders read back, and that damaged or unfinished ones are refused with a message."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.data.tokens import token_manifest as folder_module
from nemo_vfm.data.tokens import token_writer
from nemo_vfm.data.tokens.token_manifest import TokenFolder, dtype_for, read_manifest
from nemo_vfm.data.tokens.token_stream import TokenStream
from nemo_vfm.data.tokens.token_writer import ShardFiles, write_tokens


def test_what_is_written_is_read_again(token_folder):
    folder = TokenFolder(token_folder([3, 0, 5, 2], per_shard=3))
    assert [shard.documents for shard in folder.manifest.shards] == [3, 1]
    assert folder.tokens(0).tolist() == [0, 1, 2, 99_999, 99_999, 5, 6, 7, 8, 9, 99_999]
    assert folder.ends(0).tolist() == [4, 5, 11] and folder.tokens(1).tolist() == [11, 12, 99_999]
    assert folder.manifest.tokens() == 14 and folder.manifest.documents() == 4
    folder.verify()


def test_documents_that_are_noted_in_several_turns_give_the_same_files(token_folder, monkeypatch):
    whole = token_folder([4, 9, 2, 0, 7, 1, 3], name="whole", per_shard=7)
    monkeypatch.setattr(token_writer, "_BUFFERED", 2)
    turns = token_folder([4, 9, 2, 0, 7, 1, 3], name="turns", per_shard=7)
    assert {p.name: p.read_bytes() for p in turns.iterdir()} == {p.name: p.read_bytes() for p in whole.iterdir()}


def test_a_small_vocabulary_takes_two_bytes_a_token_and_a_large_one_four(tmp_path):
    assert [dtype_for(size).str for size in (1, 65_536, 65_537, 1 << 32)] == ["<u2", "<u2", "<u4", "<u4"]
    for size, width in ((65_536, 2), (65_537, 4)):
        folder = tmp_path / str(size)
        write_tokens(folder, [[size - 2] * 9], vocab_size=size, end=size - 1, tokenizer="t", per_shard=1)
        assert (folder / "shard-000000.tokens").stat().st_size == 10 * width
        assert TokenFolder(folder).tokens(0).tolist() == [size - 2] * 9 + [size - 1]


def test_the_same_documents_give_the_same_bytes(token_folder):
    one, two = token_folder([4, 9, 2], name="one"), token_folder([4, 9, 2], name="two")
    assert {p.name: p.read_bytes() for p in one.iterdir()} == {p.name: p.read_bytes() for p in two.iterdir()}


def test_a_token_beyond_the_vocabulary_is_refused_and_leaves_no_shard(tmp_path):
    with pytest.raises(UserError, match="1,000"), ShardFiles(tmp_path, "a", vocab_size=1000, end=999) as files:
        files.write([1, 1000])
    with pytest.raises(UserError, match="-1"), ShardFiles(tmp_path, "a", vocab_size=1000, end=999) as files:
        files.write([-1])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_not_finished_is_told_from_one_that_is_none(token_folder, tmp_path):
    folder = token_folder([5, 5])
    (folder / "tokens.json").unlink()
    with pytest.raises(UserError, match="unfinished; run the same command again"):
        TokenFolder(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is not a token folder; `TokenizeText`"):
        TokenFolder(tmp_path / "empty")
    with pytest.raises(UserError, match="there is no token folder"):
        TokenFolder(tmp_path / "nowhere")


@pytest.mark.parametrize("ending", ["tokens", "ends", "marks"])
@pytest.mark.parametrize("change", [-1, 2])
def test_a_file_of_another_size_is_found_when_the_folder_is_opened(token_folder, ending, change):
    folder = token_folder([5, 5])
    path = folder / f"shard-000000.{ending}"
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(DataError, match=f"shard-000000.{ending} has .* bytes, tokens.json says"):
        TokenFolder(folder)
    path.unlink()
    with pytest.raises(DataError, match=f"shard-000000.{ending} is missing"):
        TokenFolder(folder)


def test_a_file_that_shrinks_after_opening_is_found_before_it_is_mapped(token_folder):
    folder = TokenFolder(path := token_folder([500]))
    (path / "shard-000000.tokens").write_bytes(b"")
    with pytest.raises(DataError, match="has 0 bytes"):
        folder.tokens(0)


def test_verify_finds_one_changed_bit(token_folder):
    path = token_folder([30, 40])
    data = bytearray((path / "shard-000000.tokens").read_bytes())
    data[17] ^= 4
    (path / "shard-000000.tokens").write_bytes(data)
    folder = TokenFolder(path)
    with pytest.raises(DataError, match="does not match its checksum"):
        folder.verify()


@pytest.mark.parametrize("place", [0, 5, 9])
def test_verify_finds_a_token_beyond_the_vocabulary_wherever_it_stands(tmp_path, monkeypatch, place):
    monkeypatch.setattr(folder_module, "_CHECKED_AT_ONCE", 4)
    document = [50 if at == place else 7 for at in range(10)]
    write_tokens(tmp_path, [document], vocab_size=60, end=1, tokenizer="t", per_shard=1)
    TokenFolder(tmp_path).verify()
    manifest = json.loads((tmp_path / "tokens.json").read_text())
    (tmp_path / "tokens.json").write_text(json.dumps(manifest | {"vocab_size": 50}))
    with pytest.raises(DataError, match="has tokens outside its vocabulary"):
        TokenFolder(tmp_path).verify()


def test_a_token_that_damage_put_beyond_the_vocabulary_never_reaches_a_model(token_folder):
    path = token_folder([30, 40])
    data = np.fromfile(path / "shard-000000.tokens", "<u4")
    data[3] = 100_000
    data.tofile(path / "shard-000000.tokens")
    stream, out = TokenStream(TokenFolder(path)), np.empty(8, np.int64)
    with pytest.raises(DataError, match="holds token 100000, but its vocabulary ends at 100,000"):
        stream.gather(np.array([0]), np.array([8]), out)


@pytest.mark.slow  # writes 300 shards
def test_more_shards_than_may_be_open_are_read(token_folder):
    folder = TokenFolder(token_folder([2] * 300, per_shard=1))
    stream, out = TokenStream(folder), np.empty(900, np.int64)
    stream.read(0, out)
    assert out[out < 99_999].tolist() == [n for n in range(900) if n % 3 < 2]


DAMAGES = [
    lambda m: m.update(schema="nemo_vfm.tokens/2"), lambda m: m.update(tokens=m["tokens"] + 1),
    lambda m: m.update(shards=[]), lambda m: m.update(shards=m["shards"] * 2), lambda m: m.update(end=10**9),
    lambda m: m.update(vocab_size=-4), lambda m: m.update(vocab_size=2.5), lambda m: m.update(dtype="uint16"),
    lambda m: m["shards"][0].update(name="../../outside"), lambda m: m["shards"][0].update(documents=0),
    lambda m: m["shards"][0].update(tokens=True), lambda m: m["shards"][0].pop("ends_sha256"),
    lambda m: m["shards"][0].update(marks_sha256="x"), lambda m: m.pop("tokenizer"),
    lambda m: m["shards"].append([]), lambda m: m.update(shards={"a": 1}),
    lambda m: m["shards"][0].update(tokens=1 << 70),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_a_manifest_that_makes_no_sense_is_refused(token_folder, number):
    path = token_folder([5, 5]) / "tokens.json"
    content = json.loads(path.read_text())
    DAMAGES[number](content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="is damaged"):
        read_manifest(path.parent)


def test_random_damage_is_refused_or_harmless_but_never_a_crash(token_folder, tmp_path):
    whole, numbers, said = token_folder([20, 3, 50, 7]), random.Random(0), 0
    for number in range(60):
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(whole, folder)
        path = numbers.choice(sorted(folder.iterdir()))
        data = bytearray(path.read_bytes())
        match numbers.randrange(3):
            case 0:
                data[numbers.randrange(len(data))] ^= 1 << numbers.randrange(8)
            case 1:
                del data[numbers.randrange(len(data)) :]
            case _:
                data[numbers.randrange(len(data)) :] = numbers.randbytes(9)
        path.write_bytes(data)
        said += _refused(folder)
    assert said > 40


def _refused(path: Path) -> bool:
    out = np.empty(200, np.int64)
    try:
        folder = TokenFolder(path)
        stream = TokenStream(folder, val_fraction=0.3)
        stream.read(5, out)
        stream.pieces(0, stream.num_tokens)
        folder.verify()
    except NemoVfmError as error:
        assert str(path) in str(error)
        return True
    return False
