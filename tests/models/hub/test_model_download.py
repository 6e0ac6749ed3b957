# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests what is brought from an honest hub, what is kept, and what a second run does."""

import hashlib
import json
import os
import shutil
from collections import namedtuple

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.hub import model_download
from nemo_vfm.models.hub.hub_client import HubError
from tests.support.model_hub import COMMIT, LATER, MODEL, Visitor, cut_after, files, git_sha1, status

SAFE = {path: data for path, data in files().items() if not path.endswith(".bin")}
WEIGHTS = "transformer/model.safetensors"


def test_the_folder_is_the_commits_without_pickles_and_each_file_is_recorded(visitor):
    said = visitor.get()
    assert visitor.files() == SAFE and "brought 6 files" in said and COMMIT in said
    record = visitor.record()
    assert (record["model"], record["revision"], record["commit"]) == (MODEL, "main", COMMIT)
    assert {path: one["sha256"] for path, one in record["files"].items()} == {
        path: hashlib.sha256(data).hexdigest() for path, data in SAFE.items()
    }
    assert record["files"]["README.md"]["git_sha1"] == git_sha1(b"# tiny\n")
    assert list(record["left_out"]) == ["vae/pytorch model.bin"]
    assert not (visitor.folder / ".get").exists()


def test_a_branch_is_asked_for_once_and_every_file_is_of_its_commit(hub, visitor):
    def move(handler):
        hub.branches["main"] = LATER
        handler.answer()

    hub.commits[LATER] = {path: b"other " + data for path, data in files().items()}
    hub.always["README.md"] = move
    visitor.get()
    assert visitor.files() == SAFE and visitor.record()["commit"] == COMMIT
    assert len(hub.asked("/revision/")) == 1 and not hub.asked(LATER)


def test_a_branch_that_moved_while_a_run_was_stopped_does_not_mix_two_commits(hub, visitor):
    hub.always[WEIGHTS] = status(503)
    with pytest.raises(HubError, match="4 tries"):
        visitor.get()
    hub.always.clear()
    hub.commits[LATER], hub.branches["main"] = dict.fromkeys(files(), b"x"), LATER
    visitor.get()
    assert visitor.files() == SAFE and visitor.record()["commit"] == COMMIT


def test_a_second_run_reads_every_file_and_asks_the_hub_nothing(hub, visitor, monkeypatch):
    visitor.get()
    before, stamps = len(hub.requests), [path.stat().st_mtime_ns for path in visitor.folder.rglob("*")]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "nothing to do: 6 files" in visitor.get()
    assert visitor.get(revision=COMMIT).startswith("nothing to do")
    assert len(hub.requests) == before
    assert stamps == [path.stat().st_mtime_ns for path in visitor.folder.rglob("*")]


def test_a_file_that_was_changed_here_is_named_and_not_replaced(visitor):
    visitor.get()
    (visitor.folder / WEIGHTS).write_bytes(files()[WEIGHTS][:-1] + b"!")
    with pytest.raises(DataError, match=rf"{WEIGHTS}: its sha256 is \w+, expected \w+.*was changed here: remove it"):
        visitor.get()
    assert (visitor.folder / WEIGHTS).read_bytes().endswith(b"!")
    (visitor.folder / WEIGHTS).unlink()
    assert "brought 1 file " in visitor.get() and visitor.files() == SAFE


def test_only_brings_what_fits_and_the_rest_can_follow(hub, visitor):
    visitor.get("transformer/*", "*.json")
    first = {"model_index.json", "transformer/config.json", WEIGHTS}
    assert set(visitor.files()) == first
    visitor.get()
    assert visitor.files() == SAFE and len(hub.asked(f"hub GET /{MODEL}/resolve/{COMMIT}/{WEIGHTS}")) == 1
    visitor.get("*.bin")
    assert visitor.files() == files() and not visitor.record()["left_out"]
    assert "nothing to do: 7 files" in visitor.get()


def test_a_pattern_that_fits_nothing_says_what_there_is_and_leaves_no_folder(visitor):
    visitor.get("README.md")
    with pytest.raises(UserError, match=r"--only 'unet/\*' fits no file of the model; it has README.md, empty.txt"):
        visitor.get("vae/*", "unet/*")
    assert set(visitor.files()) == {"README.md"}
    with pytest.raises(UserError, match="fits no file"):
        Visitor(visitor.hub, visitor.folder.with_name("new") / "below").get("unet/*")
    assert not visitor.folder.with_name("new").exists()


def test_a_folder_may_be_a_link_to_another_disk(visitor, tmp_path):
    (tmp_path / "disk").mkdir()
    visitor.folder.symlink_to(tmp_path / "disk")
    visitor.get("README.md")
    assert "nothing to do" in visitor.get("README.md") and (tmp_path / "disk" / "README.md").is_file()


def test_a_run_that_is_refused_does_not_disturb_the_one_that_asks_for_the_list(hub, visitor):
    def second(handler):
        with pytest.raises(UserError, match="another `nemo-vfm get`"):
            visitor.get()
        handler.answer()

    hub.faults["/revision/main"] = [second]
    visitor.get()
    assert visitor.files() == SAFE


def test_a_model_of_pickles_alone_is_not_brought_unasked(hub, visitor):
    hub.commits[COMMIT] = {"model.pt": b"pickle", "README.md": b"hello"}
    with pytest.raises(UserError, match=r"no weights as safetensors, only model\.pt, which may run code"):
        visitor.get()
    visitor.get("*.pt")
    assert visitor.files() == {"model.pt": b"pickle"}


def test_a_listing_of_several_pages_is_read_to_its_end_on_the_hub_alone(hub, visitor):
    hub.page = 2
    visitor.get()
    assert visitor.files() == SAFE and len(hub.asked("/tree/")) == 5


def test_another_folder_or_revision_is_never_mixed_into_one(hub, visitor, tmp_path):
    hub.commits[LATER] = {"a.safetensors": b"later"}
    visitor.get("README.md")
    with pytest.raises(UserError, match=f"holds hf://{MODEL}@main.*give another folder"):
        visitor.get(revision=LATER)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="does not come from `nemo-vfm get`; nothing in it is changed"):
        Visitor(hub, tmp_path / "mine").get()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_commit_is_taken_as_it_is_given_and_has_to_be_the_one_answered(hub, visitor):
    hub.always[f"/revision/{COMMIT}"] = lambda handler: handler.send_json({"sha": LATER})
    with pytest.raises(DataError, match=f"answers with the commit {LATER}, where {COMMIT} was asked for"):
        visitor.get(revision=COMMIT)
    assert not visitor.folder.exists()
    hub.always.clear()
    visitor.get(revision=COMMIT)
    assert visitor.record()["revision"] == COMMIT


def test_a_connection_that_breaks_is_continued_from_its_last_byte(hub, visitor):
    hub.faults["cdn:" + WEIGHTS] = [cut_after(2_000_000), cut_after(500_000)]
    visitor.get()
    assert visitor.files() == SAFE
    ranges = [one.get("Range") for one in hub.headers if one.get("Range")]
    assert "bytes=2000000-" in ranges and "bytes=2500000-" in ranges
    assert hub.sent < 1.2 * sum(map(len, SAFE.values()))


def test_what_a_stopped_run_left_is_continued_by_the_next(hub, visitor):
    hub.always["cdn:" + WEIGHTS] = cut_after(300_000)
    with pytest.raises(HubError, match=r"did not come in 4 tries.*run the same command again to go on"):
        visitor.get()
    assert (part := next((visitor.folder / ".get").glob("*.part"))).stat().st_size == 1_200_000
    hub.always.clear()
    sent = hub.sent
    visitor.get()
    assert visitor.files() == SAFE and not part.exists()
    assert hub.sent - sent < sum(map(len, SAFE.values())) - 1_100_000


def test_small_steps_forward_do_not_use_up_the_tries_of_a_large_file(hub, visitor):
    hub.faults["cdn:" + WEIGHTS] = [status(503), cut_after(1_100_000), status(503), cut_after(1_100_000), status(503),
                                    cut_after(10)]  # fmt: skip
    visitor.get()
    assert visitor.files() == SAFE


def test_a_part_that_is_damaged_or_too_long_is_brought_again_whole(hub, visitor):
    hub.always["cdn:" + WEIGHTS] = cut_after(300_000)
    with pytest.raises(HubError):
        visitor.get()
    hub.always.clear()
    part = next((visitor.folder / ".get").glob("*.part"))
    part.write_bytes(b"?" + part.read_bytes()[1:])
    visitor.get("transformer/*")
    shutil.rmtree(visitor.folder / "transformer")
    (visitor.folder / ".get").mkdir()
    (visitor.folder / ".get" / part.name).write_bytes(b"?" * 4_000_000)
    visitor.get()
    assert visitor.files() == SAFE and "bytes=4000000-" not in [one.get("Range") for one in hub.headers]


def test_two_runs_do_not_write_to_one_folder(hub, visitor):
    def second(handler):
        with pytest.raises(UserError, match="another `nemo-vfm get` writes to"):
            visitor.get("vae/*")
        handler.answer()

    hub.faults["README.md"] = [second]
    visitor.get()
    assert visitor.files() == SAFE


def test_too_small_a_disk_is_said_before_anything_is_brought(hub, visitor, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(model_download.shutil, "disk_usage", lambda _: usage(10**9, 0, 60 << 20))
    with pytest.raises(UserError, match=r"6\.1 MB are to come, and the disk of .* has 62\.9 MB free"):
        visitor.get()
    assert not hub.asked("/resolve/")


def test_a_folder_that_is_read_only_is_verified_all_the_same(visitor):
    visitor.get("README.md")
    for path in (visitor.folder / "README.md", visitor.folder):
        path.chmod(0o555)
    assert "nothing to do" in visitor.get("README.md")
    visitor.folder.chmod(0o755)


@pytest.mark.parametrize("where", [".get", "transformer", WEIGHTS])
def test_no_link_is_followed(visitor, tmp_path, where):
    visitor.get("README.md")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (visitor.folder / where).parent.mkdir(exist_ok=True)
    (visitor.folder / where).symlink_to(elsewhere / "x" if where == WEIGHTS else elsewhere)
    with pytest.raises(DataError, match=r"is a link.*links are not followed"):
        visitor.get()
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    "change",
    [{"commit": "main"}, {"format": 2}, {"files": {"../x": {"size": 1, "sha256": "0" * 64}}}, {"left_out": 3},
     {"files": {"x": {"size": -1, "sha256": "0" * 64}}}, {"files": {"x": {"size": 1}}}, {"model": "acme"}],
)  # fmt: skip
def test_a_record_that_somebody_changed_is_not_believed(visitor, change):
    visitor.get("README.md")
    (visitor.folder / "get.json").write_text(json.dumps({**visitor.record(), **change}))
    with pytest.raises(DataError):
        visitor.get()
    assert not os.path.lexists(visitor.folder.parent / "x")
