"""Tests which texts become paths and which URLs, which are refused, and that a local path costs nothing more."""

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_vfm.config.recipe_errors import RecipeError
from nemo_vfm.core.errors import DataError, MissingPackage, StoreDenied, StoreError, StoreUnreachable, UserError
from nemo_vfm.core.secret import conceal
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.uri import Address, local, place
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.evaluate.evaluate_videos import Evaluate
from tests.support.object_store import BUCKET, Bucket, Failing
from tests.support.recipe_folder import Kitchen

HOME = Address(f"s3://{BUCKET}/a")


def test_the_endpoint_of_s3_alone_goes_before_that_of_all_services(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert object_store.service("s3")[0] == "AWS"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all:1")
    assert object_store.service("s3")[0].startswith("http://all:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3:1")
    assert object_store.service("s3")[0].startswith("http://s3:1")
    assert object_store.service("gs")[0] == "Google Cloud Storage"


def test_an_object_that_is_replaced_by_one_of_the_same_size_has_another_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = object(), object()
    kinds = SimpleNamespace(FileSelector=lambda *_, **__: None, FileType=SimpleNamespace(File=file))
    monkeypatch.setattr(object_store, "_arrow", lambda: kinds)

    def listed(*times: int) -> list[object_store.StoredObject]:
        found = [SimpleNamespace(path=f"{HOME.path}/{n}", size=5, mtime_ns=t, type=file) for n, t in enumerate(times)]
        store = SimpleNamespace(get_file_info=lambda _: [*found, SimpleNamespace(type=folder)])
        monkeypatch.setattr(object_store, "_system", lambda scheme: SimpleNamespace(fs=store))
        return object_store.items(HOME)

    before, after = listed(1, 1), listed(1, 2)
    assert [item.name for item in after] == ["0", "1"] and before[0] == after[0]
    assert before[1].size == after[1].size and before[1].stamp != after[1].stamp


def test_a_local_path_stays_a_path_and_an_address_an_address() -> None:
    assert place("runs/x") == Path("runs/x") and isinstance(place(Path("/a/b")), Path)
    assert place("s3://bucket/a/b/") == "s3://bucket/a/b" and isinstance(place("s3://bucket"), Address)
    assert Address("s3://bucket/a") / "b" == "s3://bucket/a/b"
    assert (Address("gs://bucket/a/b").bucket, Address("gs://bucket/a/b").name) == ("bucket", "b")
    assert pickle.loads(pickle.dumps(HOME)) == HOME


def test_a_path_that_was_made_of_an_address_is_recognised() -> None:
    assert place(Path("s3://bucket/x")) == Address("s3://bucket/x")
    with pytest.raises(ValueError, match="not a supported URL scheme"):
        place(Path("ftp://bucket/x"))


@pytest.mark.parametrize(
    "text",
    [
        "simplecache::s3://bucket/x", "zip://x.zip::s3://bucket/x", "file:///etc/passwd", "file://etc", "local:///etc",
        "ssh://host/x", "sftp://host/x", "http://host/x", "https://host/x", "reference://x", "python://os", "memory://x",
        "github://a:b@c/x", "S3://bucket/x", "s3a://bucket/x", "hf://datasets/x", "jlab://x", "dir::s3://bucket/x",
        "s3://", "s3:///key", "s3://Bucket/x", "s3://b/x", "s3://bucket:9000/x", "s3://bucket/../x", "s3://bucket/a//b",
        "s3://bucket/a/./b", "s3://bucket/a?versionId=1", "s3://bucket/a#b", "s3://bucket/a\x00b", "s3://bucket/a\nb",
        "s3://bucket/a\\b", f"s3://bucket/{'x' * 1025}",
    ],
)  # fmt: skip
def test_every_other_kind_of_address_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|URL|bucket|part that|at most"):
        place(text)


@pytest.mark.parametrize("text", ["s3://user:hunter2@bucket/x", "s3://hunter2@bucket/x", "https://u:hunter2@host/x"])
def test_a_password_in_an_address_is_refused_and_never_shown(text: str) -> None:
    for value in (text, Path(text)):
        with pytest.raises(ValueError) as raised:
            place(value)
        assert "hunter2" not in str(raised.value)


def test_where_only_a_local_path_will_do_an_address_is_refused() -> None:
    assert local("runs/x", "the folder") == Path("runs/x")
    for value in ("s3://bucket/x", Path("s3://bucket/x")):
        with pytest.raises(ValueError, match="the folder must be a local path"):
            local(value, "the folder")


@pytest.mark.parametrize(("written", "kind"), [("s3://bucket/x", Address), ("runs/x", type(Path()))])
def test_a_recipe_gives_an_address_or_a_path(tmp_path: Path, written: str, kind: type) -> None:
    text = "_target_: nemo_vfm.evaluate.evaluate_videos.Evaluate\nsamples: runs/s\nclips: ???\n"
    job = Kitchen(tmp_path).build(text, f"clips={written}")
    assert isinstance(job, Evaluate) and type(job.clips) is kind and str(job.clips) == written


@pytest.mark.parametrize("written", ["ftp://bucket/x", '"s3://u:hunter2\\x40bucket/x"', "zip://a.zip::s3://bucket/x"])
def test_a_recipe_cannot_give_another_kind_of_address(tmp_path: Path, written: str) -> None:
    text = f"_target_: nemo_vfm.evaluate.evaluate_videos.Evaluate\nsamples: runs/s\nclips: {written}\n"
    with pytest.raises(RecipeError, match="URL") as raised:
        Kitchen(tmp_path).build(text)
    assert "hunter2" not in str(raised.value)


def test_local_paths_import_neither_fsspec_nor_pyarrow() -> None:
    code = (
        "import sys; from pathlib import Path; from nemo_vfm.core.storage.uri import place; "
        "import nemo_vfm.core.storage.object_store; "
        "place(Path('x')); place('s3://bucket/x'); sys.exit(any(m in sys.modules for m in ('fsspec', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, timeout=60).returncode == 0


def test_another_cloud_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingPackage, match=r"pip install .*'gcsfs'"):
        object_store.items(Address("gs://bucket/x"))


def test_what_is_written_is_listed_read_and_fetched(bucket: Bucket, tmp_path: Path) -> None:
    data = os.urandom(200_000)
    (tmp_path / "up").write_bytes(data)
    object_store.upload(tmp_path / "up", HOME / "b" / "up.bin")
    object_store.write(b"", HOME / "empty")
    assert [(item.name, item.size) for item in object_store.items(HOME)] == [("b/up.bin", 200_000), ("empty", 0)]
    assert object_store.items(HOME / "nowhere") == [] and object_store.read(HOME / "none") is None
    assert (
        object_store.read(HOME / "empty") == b"" and object_store.Ranges(HOME / "b/up.bin").read(7, 100) == data[7:107]
    )
    object_store.download(HOME / "b/up.bin", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == data == bucket.get("a/b/up.bin")
    object_store.remove(HOME / "empty")
    object_store.remove(HOME / "empty")
    assert [item.name for item in object_store.items(HOME)] == ["b/up.bin"]
    for offset in (199_990, 300_000):
        with pytest.raises(DataError, match="ends before byte"):
            object_store.Ranges(HOME / "b/up.bin").read(offset, 20)


def test_a_file_of_several_parts_arrives_whole(bucket: Bucket, tmp_path: Path) -> None:
    data = os.urandom(11 << 20)
    (tmp_path / "up").write_bytes(data)
    object_store.upload(tmp_path / "up", HOME / "big")
    assert bucket.get("a/big") == data
    object_store.download(HOME / "big", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == data


def test_keys_that_are_no_plain_names_are_left_alone(failing: Failing) -> None:
    for key in ("a/ok", "a/../../etc/x", "a//x", "a/./y", "a/b\\c"):
        failing.put(key, b"1")
    assert [item.name for item in object_store.items(HOME)] == ["ok"]


def test_another_hash_leaves_no_file(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a/x", b"1234")
    with pytest.raises(DataError, match="recorded hash"):
        object_store.download(HOME / "x", tmp_path / "x", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_no_such_bucket_is_said(bucket: Bucket) -> None:
    for ask in (
        lambda: object_store.items(Address("s3://nobody/x")),
        lambda: object_store.write(b"1", Address("s3://nobody/x")),
    ):
        with pytest.raises(StoreError, match="there is no bucket nobody"):
            ask()


@pytest.mark.parametrize("fault", [403, *(pytest.param(one, marks=pytest.mark.slow) for one in ("hang", "reset"))])
def test_refusal_silence_and_torn_lines_are_told_in_bounded_time(failing: Failing, fault: int | str) -> None:
    failing.put("a/x", b"1234")
    failing.faults["/shelf/a/x"] = fault
    os.environ["NEMO_VFM_STORE_TIMEOUT_S"] = "1"
    began, kind = time.monotonic(), StoreDenied if fault == 403 else StoreUnreachable
    with pytest.raises(kind, match="denies access" if fault == 403 else "cannot be reached"):
        object_store.read(HOME / "x")
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("fault", ["reset", 500, 503, "short"])
def test_a_passing_fault_is_tried_again(failing: Failing, fault: int | str) -> None:
    failing.put("a/x", bytes(1000))
    failing.faults["GET /shelf/a/x"] = fault
    failing.times = 1
    assert object_store.read(HOME / "x") == bytes(1000)


@pytest.mark.slow
def test_a_body_that_is_always_cut_short_leaves_no_file(failing: Failing, tmp_path: Path) -> None:
    failing.put("a/x", bytes(1000))
    failing.faults["GET /shelf/a/x"] = "short"
    with pytest.raises((StoreUnreachable, DataError)):
        object_store.download(HOME / "x", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_threads_share_one_open_object(bucket: Bucket) -> None:
    data = os.urandom(64 * 1000)
    bucket.put("a/x", data)
    ranges, found = object_store.Ranges(HOME / "x"), {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: ranges.read(n * 1000, 1000)})) for n in range(64)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert b"".join(found[n] for n in range(64)) == data


def test_a_fork_reads_on_its_own_while_the_parent_goes_on(bucket: Bucket) -> None:
    bucket.put("a/x", b"0123456789")
    assert object_store.read(HOME / "x") == b"0123456789"  # the parent's client is at work before the fork
    child = os.fork()
    if child == 0:
        os._exit(0 if object_store.read(HOME / "x") == b"0123456789" else 1)
    deadline = time.monotonic() + 20
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        assert object_store.read(HOME / "x") == b"0123456789"
    assert done != (0, 0), "the child hangs"
    assert os.waitstatus_to_exitcode(done[1]) == 0


def test_credentials_may_be_none(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("a/x", b"1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "yes")
    assert [item.name for item in object_store.items(HOME)] == ["x"] or isinstance(bucket, Failing)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_time_limit_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_VFM_STORE_TIMEOUT_S", text)
    with pytest.raises(UserError, match="number of seconds"):
        object_store.items(HOME)


def test_there_are_no_shards_where_nothing_is(bucket: Bucket) -> None:
    with pytest.raises(StoreError, match="there is no bucket nobody"):
        ShardSet(Address("s3://nobody/x"))


def test_an_address_holds_no_value_of_a_variable_that_is_secret_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "abcdefgh1234")
    assert Address("s3://bucket/x") == "s3://bucket/x"
    for text in ("s3://bucket/abcdefgh1234", "s3://bucket/x/abcdefgh1234.mp4", "s3://abcdefgh1234/x"):
        with pytest.raises(ValueError, match="must not contain a secret"):
            Address(text)


def test_a_password_in_an_address_is_not_shown_again() -> None:
    with pytest.raises(ValueError, match="holds a user, password or port"):
        Address("s3://user:" + "hunter2222@bucket/x")
    assert conceal("source.path=s3://user:" + "hunter2222@bucket/x") == "source.path=s3://user:***@bucket/x"
