"""Tests downloads from a correct hub: which files, which record, and what a second run does."""

import hashlib
import json
import os
import shutil
from collections import namedtuple

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.hub import model_download
from nemo_vfm.models.hub.hub_client import HubError
from tests.support.model_hub import COMMIT, LATER, MODEL, ModelDownload, cut_after, files, git_sha1, status

SAFE = {path: data for path, data in files().items() if not path.endswith(".bin")}
WEIGHTS = "transformer/model.safetensors"


def test_all_files_but_pickles_are_downloaded_and_recorded(download):
    summary = download.get()
    assert download.files() == SAFE and "downloaded 6 files" in summary and COMMIT in summary
    record = download.record()
    assert (record["model"], record["revision"], record["commit"]) == (MODEL, "main", COMMIT)
    assert {path: one["sha256"] for path, one in record["files"].items()} == {
        path: hashlib.sha256(data).hexdigest() for path, data in SAFE.items()
    }
    assert record["files"]["README.md"]["git_sha1"] == git_sha1(b"# tiny\n")
    assert list(record["left_out"]) == ["vae/pytorch model.bin"]
    assert not (download.folder / ".get").exists()


def test_a_branch_is_resolved_once_and_every_file_is_of_that_commit(hub, download):
    def move(handler):
        hub.branches["main"] = LATER
        handler.answer()

    hub.commits[LATER] = {path: b"other " + data for path, data in files().items()}
    hub.always["README.md"] = move
    download.get()
    assert download.files() == SAFE and download.record()["commit"] == COMMIT
    assert len(hub.asked("/revision/")) == 1 and not hub.asked(LATER)


def test_resuming_after_a_branch_moved_does_not_mix_two_commits(hub, download):
    hub.always[WEIGHTS] = status(503)
    with pytest.raises(HubError, match="4 attempts"):
        download.get()
    hub.always.clear()
    hub.commits[LATER], hub.branches["main"] = dict.fromkeys(files(), b"x"), LATER
    download.get()
    assert download.files() == SAFE and download.record()["commit"] == COMMIT


def test_a_second_run_verifies_every_file_without_contacting_the_hub(hub, download, monkeypatch):
    download.get()
    before, stamps = len(hub.requests), [path.stat().st_mtime_ns for path in download.folder.rglob("*")]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "nothing to do: 6 files" in download.get()
    assert download.get(revision=COMMIT).startswith("nothing to do")
    assert len(hub.requests) == before
    assert stamps == [path.stat().st_mtime_ns for path in download.folder.rglob("*")]


def test_a_locally_changed_file_is_reported_and_not_replaced(download):
    download.get()
    (download.folder / WEIGHTS).write_bytes(files()[WEIGHTS][:-1] + b"!")
    with pytest.raises(DataError, match=rf"{WEIGHTS}: sha256 is \w+, but the commit.*was changed locally: remove it"):
        download.get()
    assert (download.folder / WEIGHTS).read_bytes().endswith(b"!")
    (download.folder / WEIGHTS).unlink()
    assert "downloaded 1 file " in download.get() and download.files() == SAFE


def test_only_downloads_what_matches_and_a_later_run_adds_the_rest(hub, download):
    download.get("transformer/*", "*.json")
    first = {"model_index.json", "transformer/config.json", WEIGHTS}
    assert set(download.files()) == first
    download.get()
    assert download.files() == SAFE and len(hub.asked(f"hub GET /{MODEL}/resolve/{COMMIT}/{WEIGHTS}")) == 1
    download.get("*.bin")
    assert download.files() == files() and not download.record()["left_out"]
    assert "nothing to do: 7 files" in download.get()


def test_a_pattern_without_matches_lists_the_files_and_leaves_no_folder(download):
    download.get("README.md")
    with pytest.raises(UserError, match=r"--only 'unet/\*' matches no file of the model, which has README.md, emp"):
        download.get("vae/*", "unet/*")
    assert set(download.files()) == {"README.md"}
    with pytest.raises(UserError, match="matches no file"):
        ModelDownload(download.hub, download.folder.with_name("new") / "below").get("unet/*")
    assert not download.folder.with_name("new").exists()


def test_the_folder_itself_may_be_a_symbolic_link(download, tmp_path):
    (tmp_path / "disk").mkdir()
    download.folder.symlink_to(tmp_path / "disk")
    download.get("README.md")
    assert "nothing to do" in download.get("README.md") and (tmp_path / "disk" / "README.md").is_file()


def test_a_model_that_has_only_pickles_needs_an_explicit_pattern(hub, download):
    hub.commits[COMMIT] = {"model.pt": b"pickle", "README.md": b"hello"}
    with pytest.raises(UserError, match=r"no safetensors weights, only model\.pt\. Loading these elsewhere may run"):
        download.get()
    download.get("*.pt")
    assert download.files() == {"model.pt": b"pickle"}


def test_all_pages_of_a_listing_are_read_from_the_hub_itself(hub, download):
    hub.page = 2
    download.get()
    assert download.files() == SAFE and len(hub.asked("/tree/")) == 5


def test_two_models_or_revisions_never_share_a_folder(hub, download, tmp_path):
    hub.commits[LATER] = {"a.safetensors": b"later"}
    download.get("README.md")
    with pytest.raises(UserError, match=f"holds hf://{MODEL}@main.*give another folder"):
        download.get(revision=LATER)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="was not created by `nemo-vfm get`; nothing in it was changed"):
        ModelDownload(hub, tmp_path / "mine").get()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_requested_commit_must_be_the_one_that_the_hub_returns(hub, download):
    hub.always[f"/revision/{COMMIT}"] = lambda handler: handler.send_json({"sha": LATER})
    with pytest.raises(DataError, match=f"returned commit {LATER}, but {COMMIT} was requested"):
        download.get(revision=COMMIT)
    assert not download.folder.exists()
    hub.always.clear()
    download.get(revision=COMMIT)
    assert download.record()["revision"] == COMMIT


def test_a_broken_connection_is_resumed_at_the_last_byte(hub, download):
    hub.faults["cdn:" + WEIGHTS] = [cut_after(2_000_000), cut_after(500_000)]
    download.get()
    assert download.files() == SAFE
    ranges = [one.get("Range") for one in hub.headers if one.get("Range")]
    assert "bytes=2000000-" in ranges and "bytes=2500000-" in ranges
    assert hub.sent < 1.2 * sum(map(len, SAFE.values()))


def test_the_next_run_resumes_the_partial_file_of_a_stopped_run(hub, download):
    hub.always["cdn:" + WEIGHTS] = cut_after(300_000)
    with pytest.raises(HubError, match=r"failed after 4 attempts.*run the same command again to resume"):
        download.get()
    assert (part := next((download.folder / ".get").glob("*.part"))).stat().st_size == 1_200_000
    hub.always.clear()
    sent = hub.sent
    download.get()
    assert download.files() == SAFE and not part.exists()
    assert hub.sent - sent < sum(map(len, SAFE.values())) - 1_100_000


def test_progress_resets_the_count_of_failed_attempts(hub, download):
    hub.faults["cdn:" + WEIGHTS] = [status(503), cut_after(1_100_000), status(503), cut_after(1_100_000), status(503),
                                    cut_after(10)]  # fmt: skip
    download.get()
    assert download.files() == SAFE


def test_a_damaged_or_oversized_partial_file_is_downloaded_again(hub, download):
    hub.always["cdn:" + WEIGHTS] = cut_after(300_000)
    with pytest.raises(HubError):
        download.get()
    hub.always.clear()
    part = next((download.folder / ".get").glob("*.part"))
    part.write_bytes(b"?" + part.read_bytes()[1:])
    download.get("transformer/*")
    shutil.rmtree(download.folder / "transformer")
    (download.folder / ".get").mkdir()
    (download.folder / ".get" / part.name).write_bytes(b"?" * 4_000_000)
    download.get()
    assert download.files() == SAFE and "bytes=4000000-" not in [one.get("Range") for one in hub.headers]


@pytest.mark.parametrize(("during", "wanted"), [("/revision/main", []), ("README.md", ["vae/*"])])
def test_a_second_run_is_refused_and_does_not_disturb_the_first(hub, download, during, wanted):
    def second(handler):
        with pytest.raises(UserError, match="another `nemo-vfm get` is writing to"):
            download.get(*wanted)
        handler.answer()

    hub.faults[during] = [second]
    download.get()
    assert download.files() == SAFE


def test_too_little_disk_space_is_reported_before_any_download(hub, download, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(model_download.shutil, "disk_usage", lambda _: usage(10**9, 0, 60 << 20))
    with pytest.raises(UserError, match=r"needs 6\.1 MB, but the disk of .* has 62\.9 MB free"):
        download.get()
    assert not hub.asked("/resolve/")


def test_a_read_only_folder_can_still_be_verified(download):
    download.get("README.md")
    for path in (download.folder / "README.md", download.folder):
        path.chmod(0o555)
    assert "nothing to do" in download.get("README.md")
    download.folder.chmod(0o755)


@pytest.mark.parametrize("where", [".get", "transformer", WEIGHTS])
def test_symbolic_links_are_not_followed(download, tmp_path, where):
    download.get("README.md")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (download.folder / where).parent.mkdir(exist_ok=True)
    (download.folder / where).symlink_to(elsewhere / "x" if where == WEIGHTS else elsewhere)
    with pytest.raises(DataError, match=r"is a link.*links are not followed"):
        download.get()
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    "change",
    [{"commit": "main"}, {"format": 2}, {"files": {"../x": {"size": 1, "sha256": "0" * 64}}}, {"left_out": 3},
     {"files": {"x": {"size": -1, "sha256": "0" * 64}}}, {"files": {"x": {"size": 1}}}, {"model": "acme"}],
)  # fmt: skip
def test_an_invalid_record_is_refused(download, change):
    download.get("README.md")
    (download.folder / "get.json").write_text(json.dumps({**download.record(), **change}))
    with pytest.raises(DataError):
        download.get()
    assert not os.path.lexists(download.folder.parent / "x")
