"""Tests that hostile .nemo, .ckpt and .pt files are refused: no canary, little memory, little time."""

import gzip
import pickle
import random
import struct
import tarfile
import time
import tracemalloc
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from nemo_vfm.core.errors import DataError, NemoVfmError
from nemo_vfm.models.convert import opcodes
from nemo_vfm.models.convert.foreign import read_foreign
from tests.support.foreign_files import CONFIG, evil_pickles, link, members_of, nemo, saved, with_pickle, zipped

HONEST = saved({"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3)})
MEGABYTE = 1 << 20


@contextmanager
def bounded(*, megabytes=24, seconds=10):
    """Fail where what is inside takes more than this; without `megabytes` memory is not followed, which is slow."""
    if megabytes:
        tracemalloc.start()
    began = time.monotonic()
    try:
        yield
    finally:
        peak, spent = tracemalloc.get_traced_memory()[1], time.monotonic() - began
        tracemalloc.stop()
    assert not megabytes or peak < megabytes * MEGABYTE, f"{peak / MEGABYTE:.0f} MiB"
    assert spent < seconds, f"{spent:.1f} s"


@pytest.fixture
def refused(tmp_path):
    """Bytes and a pattern in; fails unless they are refused with such a sentence and nothing appears."""

    def judge(data, pattern, *, name="evil.ckpt", **bounds):
        path = tmp_path / name
        path.write_bytes(data)
        with bounded(**bounds), pytest.raises(DataError, match=pattern):
            read_foreign(path)
        assert sorted(file.name for file in tmp_path.iterdir()) == [name]

    return judge


ATTACKS = [name for name, _ in evil_pickles(Path("canary"))]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("way", ["zip", "nemo", "bare", "left out"])
def test_a_pickle_that_runs_code_makes_no_canary(tmp_path, attack, way):
    canary = tmp_path / "canary"
    pickled = dict(evil_pickles(canary))[attack]
    inside = with_pickle(HONEST, pickled)
    members = {"model_config.yaml": CONFIG.encode(), "model_weights.ckpt": inside}
    path = tmp_path / "evil.safetensors"
    path.write_bytes({"zip": inside, "left out": inside, "nemo": nemo(members), "bare": pickled}[way])
    with bounded(), pytest.raises(NemoVfmError):
        read_foreign(path, leave_out=way == "left out")
    assert not canary.exists()


def test_a_name_that_is_a_tree_of_lists_is_not_written_out():
    tree = b"]\x94" + b"".join(b"](h%ch%ce\x94" % (level, level) for level in range(18))  # twice as long at each level
    with bounded(megabytes=1), pytest.raises(DataError, match="a name that is not text"):
        opcodes.read_pickle(b"\x80\x04" + tree + b"\x8c\x01x\x93.", leave_out=True)


def test_the_attacks_work_on_a_reader_that_unpickles(tmp_path):
    for name, pickled in evil_pickles(tmp_path / "canary"):
        if name.startswith("protocol"):
            pickle.loads(pickled)
            assert (tmp_path / "canary").exists(), f"{name} would prove nothing"
            (tmp_path / "canary").unlink()


def test_a_refusal_names_what_it_refused(refused):
    refused(with_pickle(HONEST, b"\x80\x02cos\nsystem\n."), r"names os\.system, which is code, not data")


def storage(key=b"0", count=6, kind=b"FloatStorage"):
    """The instructions that push a storage."""
    number = b"J" + struct.pack("<i", count)
    return (b"(X\x07\x00\x00\x00storagectorch\n" + kind + b"\nX" + struct.pack("<I", len(key)) + key
            + b"X\x03\x00\x00\x00cpu" + number + b"tQ")  # fmt: skip


def whole(value):
    """The instructions that push a whole number of up to eight bytes."""
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def tensor(shape, stride, offset=0, **given):
    """A pickle of a state dict with one tensor, its place as told."""
    lengths, steps = (b"(" + b"".join(map(whole, numbers)) + b"t" for numbers in (shape, stride))
    made = (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage(**given) + whole(offset) + lengths + steps
            + b"\x89ccollections\nOrderedDict\n)RtR")  # fmt: skip
    return b"\x80\x02}X\x01\x00\x00\x00w" + made + b"s."


def test_the_hand_made_tensor_is_read_when_it_is_honest(tmp_path):
    path = tmp_path / "honest.pt"
    path.write_bytes(with_pickle(HONEST, tensor((2, 3), (3, 1))))
    assert read_foreign(path).weights["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [
        ((10**12,), (1,), 0),
        ((10**6, 10**6), (0, 0), 0),  # every number the same one: small in the file, 4 TB written out
        ((2**40, 2**40, 2**40), (1, 1, 1), 0),
        ((2, 3), (3, 2), 0),
        ((2, 3), (3, 1), 1),
        ((-2, 3), (3, 1), 0),
        ((2, 3), (-3, 1), 5),
        ((2, 3), (3,), 0),
        ((1,) * 65, (1,) * 65, 0),
        ((1,), (1,), 2**62),
    ],
)
def test_a_tensor_that_is_larger_than_its_storage_is_refused_before_memory_is_taken(refused, shape, stride, offset):
    refused(with_pickle(HONEST, tensor(shape, stride, offset)), "a tensor|its pickle gives", megabytes=4, seconds=2)


@pytest.mark.parametrize(
    "given", [{"count": 2**31 - 1}, {"key": b"../../0"}, {"key": b"9"}, {"count": -1}, {"kind": b"DoubleStorage"}]
)
def test_a_storage_that_is_not_there_as_said_is_refused(refused, given):
    refused(with_pickle(HONEST, tensor((2, 3), (3, 1), **given)), "storage", megabytes=4, seconds=2)


def test_a_thousand_views_of_one_storage_are_refused(tmp_path, refused):
    base = torch.zeros(1000)
    refused(saved({str(i): base for i in range(1000)}), "ask for 4,000,000 bytes one by one")


def test_a_list_that_holds_itself_is_not_walked_for_ever(refused):
    loop: list[object] = []
    loop.append(loop)
    refused(with_pickle(HONEST, pickle.dumps({"state_dict": {"w": loop}}, 2)), "nested without end")


def test_nine_times_nine_times_nine_is_not_walked_for_ever(refused):
    lists: list[object] = [1]
    for _ in range(12):
        lists = [lists] * 9
    refused(with_pickle(HONEST, pickle.dumps({"state_dict": {"w": lists}}, 2)), "nested without end", megabytes=0)


def test_a_pickle_of_millions_of_instructions_is_refused(refused, monkeypatch):
    monkeypatch.setattr(opcodes, "MAX_INSTRUCTIONS", 20_000)
    refused(with_pickle(HONEST, b"\x80\x02" + b"]" * 20_001 + b"."), "more than 20,000 instructions")


@pytest.mark.parametrize("size", [0, 1, 4, 30, 100, len(HONEST) // 2, len(HONEST) - 1])
def test_a_truncated_file_is_refused(refused, size):
    refused(HONEST[:size], "not a complete zip|neither|continues|ends before|no data")


def test_a_changed_number_is_seen(refused):
    at = HONEST.index(struct.pack("<3f", 0, 1, 2))
    refused(HONEST[:at] + b"\x01" + HONEST[at + 1 :], "do not match their checksum")


def test_members_that_share_bytes_are_refused(refused):
    data = bytearray(saved({"w": torch.ones(3), "b": torch.ones(3)}))  # equal bytes, so that no checksum sees it
    entries = [i for i in range(len(data)) if data[i : i + 4] == b"PK\x01\x02"]
    places = {bytes(data[i + 46 : i + 46 + struct.unpack_from("<H", data, i + 28)[0]]): i for i in entries}
    first, second = (place for name, place in places.items() if b"/data/" in name)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    refused(bytes(data), "shares bytes of the zip with another member")


def test_a_zip_bomb_is_refused_unread(refused):
    members = members_of(HONEST) | {"archive/data/0": bytes(64 * MEGABYTE)}
    refused(zipped(members, zipfile.ZIP_DEFLATED), "is packed or encrypted", megabytes=4)


def test_a_torchscript_program_is_refused(refused, tmp_path):
    members = members_of(HONEST)
    root = next(iter(members)).partition("/")[0]
    refused(zipped(members | {f"{root}/code/__torch__.py": b"import os"}), "TorchScript program, which is code")


GOOD = {"model_config.yaml": CONFIG.encode(), "model_weights.ckpt": HONEST}


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/../../x", "..", "./../x", "a\\..\\x"])
def test_a_name_that_leads_out_is_refused(refused, name):
    refused(nemo(GOOD | {name: b"x"}), "leads out of its folder", name="evil.nemo")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("name", ["model_weights.ckpt", "tokenizer.model"])
def test_links_and_devices_are_refused(refused, kind, name):
    members = {key: data for key, data in GOOD.items() if key != name}
    refused(nemo(members, extra=(link(name, "/etc/passwd", kind),)), "a link, a device or sparse", name="evil.nemo")


def test_a_member_twice_is_refused(refused):
    twice = GOOD | {"./model_weights.ckpt": with_pickle(HONEST, b"\x80\x02cos\nsystem\n.")}
    refused(nemo(twice), "'model_weights.ckpt' twice", name="evil.nemo")


def test_a_gzip_bomb_is_stopped_early(refused):
    bomb = gzip.compress(bytes(256 * MEGABYTE), 1)
    assert len(bomb) < 2 * MEGABYTE
    refused(bomb, "unzips to more than 67,108,864 bytes", name="evil.nemo", megabytes=24, seconds=20)


@pytest.mark.parametrize("cut", [4, 20, 300])
def test_a_cut_gzip_is_refused(refused, cut):
    refused(nemo(GOOD, packed=True)[:-cut], "gzip is damaged", name="evil.nemo")


@pytest.mark.parametrize("size", [512, 1024, 1500, 2500])
def test_a_cut_tar_is_refused(refused, size):
    refused(nemo(GOOD)[:size], "beyond the archive|holds model_config|not a complete tar|neither", name="evil.nemo")


def test_a_header_that_claims_a_gigabyte_of_name_is_refused(refused):
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    evil = info.tobuf(tarfile.GNU_FORMAT) + bytes(48 * MEGABYTE)
    refused(evil, "a header claims", name="evil.nemo", megabytes=4)


def test_a_negative_size_does_not_walk_backwards(refused):
    data = bytearray(nemo(GOOD))
    data[124:136] = b"\xff" * 8 + struct.pack(">i", -512)
    data[148:156] = b"        "
    data[148:156] = b"%06o\0 " % sum(data[:512])
    refused(bytes(data), "goes backwards|not a complete tar|beyond|holds model", name="evil.nemo")


def mutate(draw, data):
    """A file with a few bytes changed, cut, repeated or made huge."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data))
        what = draw.randrange(4)
        if what == 0:
            data[at] = draw.randrange(256)
        elif what == 1:
            del data[at : at + draw.randint(1, 64)]
        elif what == 2:
            data[at:at] = data[at : at + draw.randint(1, 64)]
        else:
            data[at : at + 8] = b"\xff" * 8
    return bytes(data)


def fuzz(tmp_path, cases):
    draw = random.Random(20261121)
    path = tmp_path / "file"
    seeds = (HONEST, nemo(GOOD), nemo(GOOD, packed=True))
    refusals = 0
    for case in range(cases):
        path.write_bytes(mutate(draw, seeds[case % 3]))
        try:
            found = read_foreign(path)
        except NemoVfmError:
            refusals += 1
        else:
            assert all(tensor.numel() < 100 for tensor in found.weights.values())
    return refusals


def test_damaged_files_give_sentences(tmp_path):
    assert fuzz(tmp_path, 150) > 50


@pytest.mark.soak
def test_thousands_of_damaged_files_give_sentences(tmp_path):
    assert fuzz(tmp_path, 3000) > 1000
