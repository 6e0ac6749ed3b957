"""Tests that hostile and foreign tars list only safe members, count the others, and write nothing."""

import ast
import io
import re
import tarfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_expander

import nemo_vfm.data
from nemo_vfm.core.errors import DataError
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.shards.shard_paths import named_shards
from nemo_vfm.data.shards.tar_members import index_tar
from nemo_vfm.data.shards.tar_stream import placed_tar, samples_of

Member = tuple[tarfile.TarInfo, bytes]


def member(
    name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def tar(path: Path, *members: Member, tar_format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=tar_format) as out:
        for info, data in members:
            out.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


GOOD = (member("a.txt", b"first"), member("a.mp4", b"film"), member("dir/b.txt", b"second"))


#: Parts of names, safe and otherwise.
_PARTS = st.text("aB1. _-é東\u202e\x85\x7f\n:\\~#", min_size=1, max_size=6) | st.sampled_from(
    [".", "..", "__a__", "v1.0", "x" * 120]
)
_SUFFIXES = st.sampled_from(["mp4", "MP4", "Seg.PNG", "video.mp4", "txt", "é", "0", "cls", "a b"])


def of_webdataset(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    """Key and members of each sample, as webdataset reads the tar."""
    with path.open("rb") as file:
        found = [dict(s) for s in group_by_keys(tar_file_expander([{"url": "", "stream": file}]))]
    return [(s["__key__"], {n: data for n, data in s.items() if isinstance(data, bytes)}) for s in found]


def streamed(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    return [(raw.key, dict(raw.members)) for raw in samples_of(placed_tar(path), max_member_bytes=1 << 20)]


def indexed(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    data = path.read_bytes()
    return [(key, {n: data[at : at + size] for n, (at, size) in members.items()})
            for key, members in index_tar(path).samples.items()]  # fmt: skip


def is_safe(name: str) -> bool:
    """Of a member, by the rule in docs/how-to/video/loading.md."""
    control = any(unicodedata.category(char) in ("Cc", "Cs") for char in name)
    hidden = name.rpartition("/")[2].startswith(".")
    return not control and not hidden and ".." not in re.split(r"[/\\]", name) and not name.startswith("/")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.builds("/".join, st.lists(_PARTS, min_size=1, max_size=3)), min_size=1, max_size=4),
    st.lists(_SUFFIXES, min_size=1, max_size=3, unique_by=str.lower),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_members_of_safe_names_are_those_that_webdataset_reads(
    tmp_path_factory, stems: list[str], suffixes: list[str], tar_format: int
) -> None:
    by_key = {base_plus_ext(f"{stem}.x")[0]: stem for stem in stems}  # samples stand side by side, each key once
    names = [f"{stem}.{suffix}" for stem in by_key.values() for suffix in suffixes]
    folder, safe = tmp_path_factory.mktemp("tars"), [name for name in names if is_safe(name)]
    expected = of_webdataset(
        tar(folder / "safe.tar", *[member(name, name.encode()) for name in safe], tar_format=tar_format)
    )
    path = tar(folder / "all.tar", *[member(name, name.encode()) for name in names], tar_format=tar_format)
    assert streamed(path) == indexed(path) == expected
    assert index_tar(path).skipped.total() == len(names) - sum(len(members) for _, members in expected)


def test_a_name_that_is_not_utf_8_is_left_out_and_counted(tmp_path: Path) -> None:
    for tar_format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        index = index_tar(tar(tmp_path / "a.tar", *GOOD, member("caf\udce9.mp4"), tar_format=tar_format))
        assert index.samples.keys() == {"a", "dir/b"} and index.skipped.total() == 1


def test_a_second_sample_of_a_key_is_left_out_whole_and_counted(tmp_path: Path) -> None:
    """Its json would otherwise speak of another film."""
    again = [member("a.mp4", b"other"), member("a.json", b"{}")]
    path = tar(tmp_path / "a.tar", *GOOD, *again, member("a.TXT"), member("c.txt", b"third"))
    expected = [("a", {"txt": b"first", "mp4": b"film"}), ("dir/b", {"txt": b"second"}), ("c", {"txt": b"third"})]
    assert streamed(path) == indexed(path) == expected
    assert index_tar(path).skipped == {"a duplicate key": 3}


def test_members_of_a_sample_that_stand_apart_are_found_by_the_index(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", member("a.mp4"), member("b.mp4"), member("a.txt", b"A"), member("b.txt", b"B"))
    assert dict(indexed(path)) == {"a": {"mp4": b"x", "txt": b"A"}, "b": {"mp4": b"x", "txt": b"B"}}


def test_equal_keys_in_two_tars_are_two_samples_told_apart_by_the_tar(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for number in (0, 1):
            said = f"{folder} {number}".encode()
            tar(tmp_path / folder / f"{number}.tar", member("0.txt", said), member(f"own{folder}{number}.txt", said))
    shards = ShardSet(tmp_path / "one")
    assert {entry.key: shards.read(entry, "txt") for entry in shards.entries} == {
        "0.tar/0": b"one 0", "ownone0": b"one 0", "1.tar/0": b"one 1", "ownone1": b"one 1",
    }  # fmt: skip
    both = named_shards([tmp_path / "one", tmp_path / "two"], None)
    assert len(both.entries) == 8 == len({entry.key for entry in both.entries})
    found = {(Path(entry.shard).parent.name, both.read(entry, "txt").decode()[:3]) for entry in both.entries}
    assert found == {("one", "one"), ("two", "two")}


def test_a_foreign_webdataset_is_listed_by_its_headers(tmp_path: Path) -> None:
    for tar_format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        tar(tmp_path / "a.tar", *GOOD, tar_format=tar_format)
        shards = ShardSet(tmp_path)
        assert {e.key: {n: shards.read(e, n) for n in e.members} for e in shards.entries} == {
            "a": {"txt": b"first", "mp4": b"film"}, "dir/b": {"txt": b"second"},
        }  # fmt: skip


@pytest.mark.parametrize(
    "hostile",
    [
        member("../../x.txt"), member("/etc/x.txt"), member("a/../../x.txt"),
        member("x.txt", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("x.txt", kind=tarfile.LNKTYPE, link="a.txt"), member("x.txt", kind=tarfile.CHRTYPE),
        member("x.txt", kind=tarfile.FIFOTYPE), member("new\nline.txt"), member("x.pkl"), member("x.pt"),
        member("x.weights.pth"), member("x.pyd"), member("noextension"), member(".hidden"),
        member("dir/b.txt", b"again"),
        member("n" * 3000 + "/../x.txt"),
    ],
)  # fmt: skip
def test_hostile_members_are_left_out_and_counted(hostile: Member, tmp_path: Path) -> None:
    index = index_tar(tar(tmp_path / "a.tar", *GOOD, hostile))
    assert index.samples.keys() == {"a", "dir/b"}
    assert index.skipped.total() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_tar_cut_short_gives_its_whole_members(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", *GOOD, member("c.mp4", b"z" * 5000))
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"z" * 100) + 2000])
    index = index_tar(path)
    assert index.samples.keys() == {"a", "dir/b"}
    assert index.skipped


@pytest.mark.parametrize("data", [b"", b"not a tar" * 1000, b"\x1f\x8b" + b"\x00" * 2000])
def test_what_is_no_tar_is_refused_or_empty(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(DataError, match="a tar"):
        index_tar(tmp_path / "a.tar")


def test_a_compressed_tar_is_never_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz") as out:
        info, data = member("a.txt", b"\x00" * 10_000_000)
        out.addfile(info, io.BytesIO(data))
    with pytest.raises(DataError, match="compressed"):
        index_tar(tmp_path / "a.tar")


def test_a_giant_name_is_not_read_into_memory(tmp_path: Path) -> None:
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(head.tobuf(tarfile.GNU_FORMAT))
        file.truncate(1 << 33)  # a hole: costs no disk
    with pytest.raises(DataError):
        index_tar(tmp_path / "a.tar")


def test_a_size_that_walks_backwards_ends(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", *GOOD, tar_format=tarfile.GNU_FORMAT)
    data = bytearray(path.read_bytes())
    at = 1024  # the second header
    data[at + 124 : at + 136] = b"\xff" * 10 + (-1024 & 0xFFFF).to_bytes(2, "big")
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\x00 " % sum(data[at : at + 512])
    path.write_bytes(data)
    assert index_tar(path).samples.keys() <= {"a", "dir/b"}


def test_nothing_in_this_room_extracts_or_unpickles() -> None:
    files = sorted(Path(nemo_vfm.data.__path__[0]).rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"extract", "extractall", "extractfile", "loads_pickle"}, file
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"pickle", "dill", "joblib", "shelve"}, file


def check(data: bytes, folder: Path) -> None:
    path = folder / "f.tar"
    path.write_bytes(data)
    try:
        index = index_tar(path)
    except DataError:
        return
    for members in index.samples.values():
        assert all(offset >= 0 and offset + size <= len(data) for offset, size in members.values())


def fuzzed(seed: int, folder: Path) -> bytes:
    import random

    chance = random.Random(seed)
    data = bytearray(tar(folder / "g.tar", *GOOD, tar_format=chance.choice([0, 1, 2])).read_bytes()[:6144])
    for _ in range(chance.randint(1, 8)):
        at = chance.choice([0, 512, 1024, 1536, 2048]) + chance.choice(
            [chance.randrange(512), 124 + chance.randrange(12), 156]
        )
        data[at % len(data)] = chance.choice([0, 0x30, 0x37, 0x80, 0xFF, 0x4C, 0x78, chance.randrange(256)])
    for at in range(0, len(data), 512):  # make the checksums right, else nothing gets past the first door
        block = data[at : at + 512]
        block[148:156] = b" " * 8
        if chance.random() < 0.9 and any(block[:100]):
            data[at + 148 : at + 156] = b"%06o\x00 " % sum(block)
    return bytes(data[: chance.randint(600, len(data))])


@settings(max_examples=60, deadline=2000)
@given(st.integers(0, 10**9))
def test_damaged_tars_give_sound_places_or_a_data_error(tmp_path_factory, seed: int) -> None:
    folder = tmp_path_factory.mktemp("tars")
    check(fuzzed(seed, folder), folder)


@pytest.mark.soak
def test_two_thousand_damaged_tars_give_sound_places_or_a_data_error(tmp_path: Path) -> None:
    for seed in range(2000):
        check(fuzzed(seed, tmp_path), tmp_path)
