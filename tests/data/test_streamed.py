"""Tests that streamed tars are a function of (tars, seed, g), resume by tar and count, and are sanitized first."""

import gzip
import io
import json
import re
import shutil
import tarfile
from collections import Counter
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest

from nemo_vfm.config.locate import DEFAULT_TRUST, NotLocated, locate, trust_list
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.training_data import HasBatchSizes, TrainingData
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.data.shards import tar_order, tar_stream
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.shards.shard_upload import upload_shards
from nemo_vfm.data.shards.tar_members import TarMembers, index_tar
from nemo_vfm.data.shards.tar_order import TarCounts, TarOrder
from nemo_vfm.data.shards.tar_stream import placed_tar
from nemo_vfm.data.sources.piped import PipedTars
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.sources.streamed import StreamedTars
from nemo_vfm.data.sources.video_folder import VideoFolder
from tests.data.conftest import LatentShards, mp4
from tests.data.test_shard_data import SMALL, contents
from tests.data.test_tar import GOOD, Member, member, tar
from tests.support.object_store import BUCKET
from tests.support.object_store import Bucket as Store


@pytest.fixture
def tars(latent_shards: LatentShards) -> Path:
    """Thirteen samples in three tars, without our index."""
    folder = latent_shards([SMALL] * 13)
    for path in folder.glob("*.json"):
        path.unlink()
    return folder


def data_of(tars: Path | Address | list[Path], **changes: object) -> StreamedTars:
    return StreamedTars(**({"tars": tars, "batch_size": 4, "shuffle_buffer": 3} | changes))  # type: ignore[arg-type]


def take(data: StreamedTars, count: int, *, first: int = 0, rank: int = 0, num_ranks: int = 1) -> list[Batch]:
    data.start(seed=2, first_batch=first, rank=rank, num_ranks=num_ranks)
    return list(islice(data.train_dataloader(), count))


def test_every_sample_comes_once_an_epoch(tars: Path) -> None:
    data = data_of(tars, shuffle_buffer=1)
    assert isinstance(data, TrainingData) and isinstance(data, HasBatchSizes)
    keys = [int(key, 16) for batch in take(data, 13) for key in batch.keys]
    assert keys == [*range(13)] * 4
    shuffled = [int(key, 16) for batch in take(data_of(tars), 39) for key in batch.keys]
    assert set(Counter(shuffled).values()) == {12} and shuffled[:13] != keys[:13]
    for start in range(0, 39 * 4, 39):  # three epochs are 13 blocks of 3
        assert set(Counter(shuffled[start : start + 39]).values()) == {3}


def test_a_batch_holds_what_was_written(tars: Path) -> None:
    for batch in take(data_of(tars), 4):
        for row, key in enumerate(batch.keys):
            assert float(batch.latents_BCTHW[row].max()) == int(key, 16) == float(batch.text_BLD[row].min())
            assert batch.captions[row] == f"caption {int(key, 16)}" and float(batch.weight_B[row]) == 1


@pytest.mark.parametrize("with_counts", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_resume_gives_the_tail_of_the_whole(
    tars: Path, tmp_path: Path, num_workers: int, with_counts: bool
) -> None:
    counts = tmp_path / "counts.json" if with_counts else None
    whole = contents(take(data_of(tars, num_workers=num_workers, counts=counts), 16))
    for first in range(0, 15, 2):
        resumed = data_of(tars, num_workers=num_workers, counts=counts)
        assert contents(take(resumed, 16 - first, first=first)) == whole[first:]


def test_the_ranks_slices_make_up_the_global_batch(tars: Path) -> None:
    whole, parts = take(data_of(tars), 6), [take(data_of(tars), 6, rank=rank, num_ranks=2) for rank in (0, 1)]
    for batch, one, two in zip(whole, *parts, strict=True):
        assert one.keys + two.keys == batch.keys
    with pytest.raises(UserError, match="not divisible by 3 ranks"):
        take(data_of(tars), 1, num_ranks=3)


def test_tars_whose_count_is_known_are_passed_over(tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = tmp_path / "counts.json"
    take(data_of(tars, counts=counts), 14)
    assert sorted(count for _, count in json.loads(counts.read_text())["tars"].values()) == [3, 5, 5]
    opened: list[str] = []
    original = tar_order.samples_of
    monkeypatch.setattr(tar_order, "samples_of", lambda tar, **how: opened.append(tar.name) or original(tar, **how))
    take(data_of(tars, counts=counts), 1, first=1000)
    assert len(opened) <= 3
    data = data_of(tars, counts=counts)
    data.start(seed=0, first_batch=0)
    assert data.num_train_samples() == 13 and data.batches_per_epoch() == 13 / 4
    shard = sorted(tars.glob("*.tar"))[0]
    shard.write_bytes(shard.read_bytes() + bytes(10240))
    with pytest.raises(UserError, match="unknown until the tars have been read once"):
        changed = data_of(tars, counts=counts)
        changed.start(seed=0, first_batch=0)
        changed.num_train_samples()


_COUNTS = b'{\n "schema": "nemo_vfm.tar_counts/'


@pytest.mark.parametrize("content", [b"", _COUNTS[:9], _COUNTS + b'1",\n "tars": 3}', _COUNTS + b'1" ' + b"[" * 99999])
def test_a_damaged_file_of_counts_is_counted_again(content: bytes, tars: Path, tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_bytes(content)
    whole = contents(take(data_of(tars), 3, first=5))
    assert contents(take(data_of(tars, counts=tmp_path / "counts.json"), 3, first=5)) == whole


@pytest.mark.parametrize("num_workers", [0, 1])
def test_tars_in_a_store_give_the_same(
    bucket: Store, latent_shards: LatentShards, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_stream, "_CHUNK", 7_000)  # several a tar
    folder = latent_shards([SMALL] * 13)
    upload_shards(folder, Address(f"s3://{BUCKET}/t"))
    bucket.delete("t/shards.json")
    here = take(data_of(folder, shuffle_buffer=1), 6)
    there = take(data_of(Address(f"s3://{BUCKET}/t"), shuffle_buffer=1, num_workers=num_workers), 6)
    assert contents(there) == contents(here)
    names = sorted(name for name in bucket.names() if name.endswith(".tar"))
    one = take(data_of(Address(f"s3://{BUCKET}/{names[1]}"), shuffle_buffer=1), 1)
    assert [int(key, 16) for key in one[0].keys] == [5, 6, 7, 8]


def test_videos_are_cut_to_the_bucket_and_bad_ones_keep_their_place(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "clips") as writer:
        for number in range(5):
            data = mp4(seed=number) if number != 2 else b"no video"
            writer.write(f"clip{number}", {"mp4": data, "txt": b"said"}, {})
    for path in (tmp_path / "clips").glob("*.json"):
        path.unlink()
    data = StreamedTars(
        tars=tmp_path / "clips", batch_size=5, bucket=Bucket(48, 32, 5, 8), shuffle_buffer=1, num_workers=2
    )
    batch = take(data, 1)[0]
    assert batch.video_BCTHW.shape == (5, 3, 5, 32, 48) and batch.captions[0] == "said"
    assert batch.weight_B.tolist() == [1, 1, 0, 1, 1] and data.faults.by_sample == {"clip2": 1}


def test_equal_keys_in_a_batch_are_told_apart_by_the_tar_on_every_rank(tars: Path) -> None:
    first = min(tars.glob("*.tar"))
    for number in (0, 1):
        shutil.copy(first, tars / f"copy{number}.tar")
    for path in tars.glob("shard-*.tar"):
        path.unlink()
    whole = [take(data_of(tars, shuffle_buffer=1, batch_size=10), 1)[0].keys]
    assert whole == [tuple(f"copy{number}.tar/{key:032x}" for number in (0, 1) for key in range(5))]
    parts = [take(data_of(tars, shuffle_buffer=1, batch_size=10), 1, rank=rank, num_ranks=2)[0].keys for rank in (0, 1)]
    assert [parts[0] + parts[1]] == whole


def test_a_compressed_tar_is_a_sentence_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar").write_bytes(gzip.compress(tar(tmp_path / "b", member("a.mp4", mp4())).read_bytes()))
    sentence = f"{tmp_path / 'a.tar'} is compressed, so it cannot be read as a tar; unpack it first, with gzip -dc"
    with pytest.raises(DataError, match=re.escape(sentence)):
        index_tar(tmp_path / "a.tar")
    assert list(tar_stream.samples_of(tar_stream.placed_tar(tmp_path / "a.tar"), max_member_bytes=1)) == []
    assert f"{sentence}; the rest of it is not read" in " ".join(capsys.readouterr().err.split())


def test_a_sample_whose_latents_are_damaged_is_named_with_its_tar(latent_shards: LatentShards) -> None:
    folder = latent_shards([SMALL] * 7, bad={5: b"junk"})
    with pytest.raises(DataError, match=rf"sample {5:032x} in \S*shard-000001.tar: "):
        take(data_of(folder, shuffle_buffer=1, max_bad_in_a_row=1), 2)


def read(members: TarMembers) -> dict[str, bytes]:
    found = ((f"{one.key}.{one.extension}", members.read(one)) for one in members)
    return {name: data for name, data in found if data is not None}


def members_of(data: bytes) -> TarMembers:
    return TarMembers(io.BytesIO(data), "x.tar", max_member_bytes=1 << 20)


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_all_members_of_a_sound_tar_are_read(tar_format: int, tmp_path: Path) -> None:
    long = member("folder/" * 9 + "c.json", b"z" * 3000)
    members = members_of(tar(tmp_path / "a.tar", *GOOD, long, tar_format=tar_format).read_bytes())
    assert read(members) == {info.name: data for info, data in (*GOOD, long)} and not members.skipped


HOSTILE = [
    member("../../x.txt"), member("/etc/x.txt"), member("x.txt", kind=tarfile.SYMTYPE, link="/etc/passwd"),
    member("x.txt", kind=tarfile.LNKTYPE, link="a.txt"), member("x.txt", kind=tarfile.CHRTYPE),
    member("d.mp4", b"x" * (2 << 20)),
    member("x.txt", kind=tarfile.FIFOTYPE), member("new\nline.txt"), member("x.pkl"), member("x.PT"),
    member("n" * 4096 + ".txt"), member("noextension"), member("x.txt", kind=tarfile.DIRTYPE), member("c\x9b.txt"),
    member("d/.hidden.txt"), member("__meta__/x.txt"), member("x.__key__"), member("x.__BAD__"), member("\udcff.txt"),
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_hostile_members_do_not_pass_and_are_counted(hostile: Member, tar_format: int, tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", *GOOD, hostile, member("z.txt", b"last"), tar_format=tar_format)
    members, index = members_of(path.read_bytes()), index_tar(path)
    assert read(members) == {**{info.name: data for info, data in GOOD}, "z.txt": b"last"}
    assert members.skipped.total() == 1
    assert index.skipped == members.skipped or hostile[0].size > 1 << 20, "with an index and without"


def test_a_sparse_file_of_an_exabyte_is_passed_over() -> None:
    real = tarfile.TarInfo("bomb.mp4")
    real.size, real.type = 512, tarfile.GNUTYPE_SPARSE
    block = bytearray(real.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\x00" % 0 + b"%011o\x00" % 512
    block[483:495] = b"77777777777\x00"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\x00 " % sum(block)
    pax = tarfile.TarInfo("bomb2.mp4")
    sparse = {"major": "1", "minor": "0", "realsize": "1" + "0" * 18}
    pax.size, pax.pax_headers = 512, {f"GNU.sparse.{name}": value for name, value in sparse.items()}
    good = tarfile.TarInfo("z.txt")
    good.size = 4
    bombs = bytes(block) + bytes(512) + pax.tobuf(tarfile.PAX_FORMAT) + bytes(512)
    members = members_of(bombs + good.tobuf() + b"last" + bytes(1532))
    assert read(members) == {"z.txt": b"last"} and members.skipped == {"not a regular file": 2}


def test_a_size_in_a_pax_header_is_honoured_as_tar_does() -> None:
    info = tarfile.TarInfo("big.mp4")
    info.size, info.pax_headers = 0, {"size": "1024"}
    good = tarfile.TarInfo("z.txt")
    good.size = 4
    members = members_of(info.tobuf(tarfile.PAX_FORMAT) + b"m" * 1024 + good.tobuf() + b"last" + bytes(1532))
    assert read(members) == {"big.mp4": b"m" * 1024, "z.txt": b"last"}


@pytest.mark.parametrize("cut", [514, 700, 1100, 2100, 2600])
def test_a_tar_cut_short_gives_its_whole_members(cut: int, tmp_path: Path) -> None:
    data = tar(tmp_path / "a.tar", *GOOD, tar_format=tarfile.USTAR_FORMAT).read_bytes()[:cut]
    found = read(members_of(data))
    assert list(found) == [info.name for info, _ in GOOD][: (cut + 512 - 6) // 1024]


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_never_unpacked(kind: str, tars: Path, tmp_path: Path) -> None:
    with tarfile.open(tars / "a.tar", f"w:{kind}") as out:
        info, data = member("bomb.latents.safetensors", bytes(10_000_000))
        out.addfile(info, io.BytesIO(data))
    keys = {int(key, 16) for batch in take(data_of(tars), 5) for key in batch.keys}
    assert keys == set(range(13))


def test_a_header_that_claims_gigabytes_is_not_held() -> None:
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    with pytest.raises(DataError, match="claims"):
        read(members_of(head.tobuf(tarfile.GNU_FORMAT) + bytes(10240)))


def test_tars_without_a_sample_end_with_a_sentence_and_not_never(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(gzip.compress(bytes(10240)))
    (tmp_path / "b.tar").write_bytes(b"")
    with pytest.raises((UserError, DataError), match="no sample"):
        take(data_of(tmp_path), 1)
    with pytest.raises(UserError, match="none of the 2 tars"):
        take(data_of(tmp_path, bucket=Bucket(32, 32, 5)), 1)
    with pytest.raises(UserError, match=r"there is no .*b-1\.tar; 2 of the 2"):
        take(data_of(tmp_path / "b-{1,2}.tar"), 1)


def test_members_above_the_largest_that_is_allowed_are_left_out(tars: Path) -> None:
    with tarfile.open(min(tars.glob("*.tar"))) as first:
        largest = max(info.size for info in first if info.name.endswith("latents.safetensors"))
    assert len(take(data_of(tars, max_member_mb=largest / 1e6), 1)) == 1
    with pytest.raises(DataError, match="no latents can be read"):
        take(data_of(tars, max_member_mb=(largest - 1) / 1e6), 1)


def test_a_command_is_refused_unless_its_word_of_trust_is_given(tars: Path) -> None:
    with pytest.raises(ValueError, match="--trust piped"):
        StreamedTars(tars=Path("pipe:cat x.tar"), batch_size=1)
    for trust in (DEFAULT_TRUST, trust_list(["nemo_vfm", "webdataset"])):
        with pytest.raises(NotLocated, match="add --trust piped"):
            locate("nemo_vfm.data.sources.piped.PipedTars", trust)
    assert locate("nemo_vfm.data.sources.piped.PipedTars", trust_list(["piped"])) is PipedTars


def test_trusted_commands_give_the_same_batches(tars: Path) -> None:
    whole = contents(take(data_of(tars, shuffle_buffer=1), 7))
    commands = [f"cat '{path}'" for path in sorted(tars.glob("*.tar"))]
    piped = PipedTars(commands=commands, batch_size=4, shuffle_buffer=1, num_workers=1)
    assert contents(take(piped, 7)) == whole
    with pytest.raises(DataError, match="cannot be read"):
        take(PipedTars(commands=["false"], batch_size=1, bucket=Bucket(32, 32, 5)), 1)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("reader", ["folder", "shards", "streamed"])
def test_what_training_does_not_see_is_counted_and_said(
    reader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = cv2.imencode(".png", np.zeros((64, 64, 3), np.uint16))[1].tobytes()
    files = {
        "a.mp4": mp4(seed=1), "a.TXT": b"A", "b.my.video.mp4": mp4(seed=2), "b.my.video.json": b'{"caption": "B"}',
        "c.png": deep, "c.caption": b"C", "d.MP4": mp4(seed=3), "d.txt": b" ", "d.cls": b"7", "d.seg.PNG": deep[:99],
        "e.mp4": mp4(seed=4), "e.cls": b"8", "e.npy": b"9",
    }  # fmt: skip
    size = Bucket(48, 32, 5, 8)
    both = {"film": size, "still": Bucket(48, 32, 1)}
    if reader == "folder":
        del files["d.seg.PNG"]  # there it is a picture of its own
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        data: ListedData | StreamedTars = VideoFolder(path=tmp_path, batch_size=1, buckets=Buckets(buckets=both))
    else:
        tar(tmp_path / "a.tar", *(member(name, content) for name, content in files.items()))
        data = StreamedTars(tars=tmp_path, batch_size=1, bucket=size)
        if reader == "shards":
            data = ShardData(shards=tmp_path, batch_size=1, buckets=Buckets(buckets=both))
    data.start(seed=0, first_batch=0)
    batches = list(islice(data.train_dataloader(), 40))
    place = f"{tmp_path}/a.tar" if reader == "streamed" else str(tmp_path)
    said = told(capsys)
    assert said.count(f"2 of 5 samples in {place} have no caption") == 1 == said.count("no caption")
    assert said.count("One image has 16 bits a channel, of which the upper 8 are used") == 1
    unread = f"members in {place} that are not read: 2 .cls, 1 .seg.png, 1 .npy"
    assert said.count(unread) == (reader != "folder") == said.count("that are not read")
    captions = {caption for batch in batches for caption, weight in zip(batch.captions, batch.weight_B, strict=True)
                if weight}  # fmt: skip
    assert captions == {"A", "B", ""} | ({"C"} if reader != "streamed" else set())


def test_streams_say_what_is_missing_of_their_first_tar_and_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        tar(tmp_path / f"{number}.tar", member("a.txt"), member("b.mp4"), member("c.mp4"), member("c.text", b" "))
    order = TarOrder(
        [placed_tar(tmp_path / f"{number}.tar") for number in range(3)], TarCounts(None), 1, seed=0, max_member_bytes=9
    )
    list(islice(order.samples(0), 50))
    said = told(capsys)
    assert [said.count(f"2 of 3 samples in {tmp_path}/{number}.tar have no caption") for number in range(3)] == [
        1,
        0,
        0,
    ]
    assert said.count("6 of 9 samples in the 3 tars have no caption") == 1 and said.count("no caption") == 2


def test_what_is_streamed_is_not_held_out_and_impossible_values_are_refused(tars: Path) -> None:
    assert list(data_of(tars).val_dataloader()) == []
    for name, value in (("batch_size", 0), ("shuffle_buffer", 0), ("num_workers", -1), ("max_member_mb", 0)):
        with pytest.raises(ValueError, match="must be"):
            data_of(tars, **{name: value})
