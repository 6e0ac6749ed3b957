# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that a hub that lies about sizes, hashes, names, ranges and redirects gets no wrong file into a folder."""

import time

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.hub import file_download
from nemo_vfm.models.hub.hub_client import HubError
from tests.support.model_hub import COMMIT, LATER, body, cut_after, endless, files, status

WEIGHTS = "transformer/model.safetensors"
RIGHT = files()[WEIGHTS]
WRONG = b"!" + RIGHT[1:]
SIZE = len(RIGHT)
SAFE = {path: data for path, data in files().items() if not path.endswith(".bin")}


def parts(visitor):
    return list((visitor.folder / ".get").glob("*.part"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (body(RIGHT + b"!"), rf"announces {SIZE + 1:,} bytes, expected {SIZE:,} as the commit says"),
        (body(RIGHT[:-1]), rf"announces {SIZE - 1:,} bytes, expected {SIZE:,}"),
        (endless, rf"sends more than the {SIZE:,} bytes that the commit says; it was cut off"),
        (body(WRONG), r"its sha256 is \w{64}, expected \w{64} as the commit says"),
        (body(b"\x1f\x8b" + RIGHT[2:], Content_Encoding="gzip"), "compressed answer, which was not asked for"),
    ],
    ids=["longer", "shorter", "endless", "other bytes", "gzip"],
)
def test_bytes_that_are_not_the_commits_are_refused_and_nothing_of_them_is_kept(hub, visitor, fault, words):
    hub.always["cdn:" + WEIGHTS] = fault
    with pytest.raises(DataError, match=rf"(?:^{WEIGHTS}: )?.*{words}"):
        visitor.get()
    assert WEIGHTS not in visitor.files() and not parts(visitor) and not (visitor.folder / "get.json").exists()
    assert len(hub.asked("cdn GET")) == 1 and hub.sent < 100e6
    hub.always.clear()
    visitor.get()
    assert visitor.files() == SAFE


def test_a_small_file_has_to_have_the_hash_of_git(hub, visitor):
    hub.always["model_index.json"] = body(b'{"_class_name": "EvilPipeline"}'[:31].ljust(31))
    with pytest.raises(DataError, match=r"model_index\.json: its git hash is \w{40}, expected \w{40}"):
        visitor.get()
    assert "model_index.json" not in visitor.files()


@pytest.mark.parametrize(
    ("header", "value"),
    [("X_Repo_Commit", LATER), ("X_Linked_Size", "7"), ("X_Linked_Etag", f'"{"0" * 64}"')],
)
def test_a_hub_that_now_says_otherwise_is_stopped_before_the_bytes_come(hub, visitor, header, value):
    hub.always["hub:" + WEIGHTS] = status(302, Location=hub.cdn_url + "/x", **{header: value})
    with pytest.raises(DataError, match=f"{WEIGHTS}: the hub now gives the"):
        visitor.get()
    assert not hub.asked("cdn GET") and not parts(visitor)


@pytest.mark.parametrize(
    ("answer", "requests"),
    [
        (status(206, RIGHT[1000:], Content_Range=f"bytes 1000-{SIZE - 1}/{SIZE}"), 3),
        (status(206, RIGHT[:1000], Content_Range=f"bytes 0-999/{SIZE}"), 3),
        (status(206, RIGHT, Content_Range="bytes nonsense"), 3),
        (status(206, RIGHT[:1000]), 3),
        (status(206, RIGHT[900_000:901_000], Content_Range=f"bytes 900000-{SIZE - 1}/{SIZE}"), 3),
        (status(416, b"", Content_Range=f"bytes */{SIZE}"), 3),
        (body(RIGHT), 2),
    ],
    ids=["later", "beginning", "nonsense", "no range", "other length", "416", "the whole"],
)
def test_an_answer_with_other_bytes_than_the_rest_does_not_damage_the_file(hub, visitor, answer, requests):
    hub.faults["cdn:" + WEIGHTS] = [cut_after(900_000), answer]
    visitor.get()
    asked = hub.asked(f"cdn GET /acme/tiny-video/resolve/{COMMIT}/{WEIGHTS}")
    assert visitor.files() == SAFE and len(asked) == requests


def test_a_part_of_the_rest_is_kept_and_the_rest_of_it_follows(hub, visitor):
    piece = status(206, RIGHT[900_000:950_000], Content_Range=f"bytes 900000-949999/{SIZE}")
    hub.faults["cdn:" + WEIGHTS] = [cut_after(900_000), piece]
    visitor.get()
    assert visitor.files() == SAFE and "bytes=950000-" in [one.get("Range") for one in hub.headers]


def test_a_file_that_changed_between_two_pieces_is_brought_again_whole(hub, visitor):
    hub.faults["cdn:" + WEIGHTS] = [lambda handler: half_of(handler, WRONG)]
    visitor.get()
    assert visitor.files() == SAFE
    assert [one.get("Range") for one in hub.headers].count("bytes=500000-") == 2  # of the hub, and of the host beside


def half_of(handler, data):
    """A fault: the first half of these bytes, under the length of all."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[:500_000])
    handler.close_connection = True


def test_a_server_that_changes_the_file_each_time_is_given_up(hub, visitor):
    hub.always["cdn:" + WEIGHTS] = lambda handler: (
        half_of(handler, WRONG) if "Range" not in handler.headers else handler.send_file(WRONG)
    )
    with pytest.raises(DataError, match="its sha256 is"):
        visitor.get()
    assert not parts(visitor) and WEIGHTS not in visitor.files()


def test_a_server_that_never_goes_beyond_one_place_is_given_up(hub, visitor):
    wrong = status(206, b"x", Content_Range=f"bytes 0-0/{SIZE}")
    hub.always["cdn:" + WEIGHTS] = lambda handler: (wrong if "Range" in handler.headers else cut_after(2_000_000))(
        handler
    )
    with pytest.raises(HubError, match="did not come in 4 tries"):
        visitor.get()


def test_a_body_that_drips_counts_as_a_broken_connection(hub, visitor, monkeypatch):
    monkeypatch.setattr(file_download, "_SLOW_S", 0.05)

    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(SIZE))
        handler.end_headers()
        for at in range(SIZE):  # hours, unless the client ends it
            handler.wfile.write(RIGHT[at : at + 1])
            handler.wfile.flush()
            time.sleep(0.01)

    hub.faults["cdn:" + WEIGHTS] = [drip]
    visitor.get()
    assert visitor.files() == SAFE


@pytest.mark.parametrize(
    "path",
    ["../evil.json", "/etc/evil", "a/../../evil", "a//b", "./a", "a/.", "a\\..\\b", "a\x00b", "a\nb", "a\u202egnp.json",
     ".git/hooks/post-checkout", "a/.GIT/config", "get.json", "GET.JSON", ".get/x", "x" * 300, "a/" * 40 + "b", "",
     "a\ud800b"],
)  # fmt: skip
def test_a_name_that_leads_out_or_hides_is_refused_before_anything_is_brought(hub, visitor, path):
    hub.change_entries = lambda entries: [*entries, {**entries[-1], "path": path}]
    with pytest.raises(DataError, match="lists a file that is never written"):
        visitor.get()
    assert not hub.asked("/resolve/") and not visitor.folder.exists()


@pytest.mark.parametrize("path", ["readme.MD", "VAE/x", "model_index.json", "vae", "README.md/x", "re\u0301sume\u0301"])
def test_two_names_that_are_one_on_some_disks_are_refused(hub, visitor, path):
    hub.change_entries = lambda entries: [{**entries[-1], "path": "r\u00e9sum\u00e9"}, *entries,
                                          {**entries[-1], "path": path}]  # fmt: skip
    with pytest.raises(DataError, match="one name on some disks"):
        visitor.get()
    assert not hub.asked("/resolve/")


@pytest.mark.parametrize(
    "change",
    [{"size": -1}, {"size": 1.5}, {"size": True}, {"size": 10**18}, {"size": "7"}, {"oid": "main"}, {"oid": None},
     {"lfs": {"oid": "0" * 64, "size": 8}}, {"lfs": {"oid": "0" * 40, "size": 7}}, {"path": 3}],
)  # fmt: skip
def test_a_size_or_a_hash_that_can_be_none_is_refused(hub, visitor, change):
    hub.change_entries = lambda entries: [{**one, **(change if one["path"] == "README.md" else {})} for one in entries]
    with pytest.raises(DataError, match="the hub's listing"):
        visitor.get()
    assert not hub.asked("/resolve/")


@pytest.mark.parametrize("where", ["/revision/main", "/tree/" + "a" * 39 + "1"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [(body(b"<html>login</html>"), "not JSON"), (body(b"[" * 200_000), "not JSON"), (body(b'"x"'), "the hub"),
     (body(b"\xff\xfe"), "not JSON"), (endless, "more than .* bytes; the rest was not read"),
     (body(b"null"), "the hub"), (body(b"{}", Content_Encoding="gzip"), "compressed"),
     (status(206, b"{}"), "answered 206")],
    ids=["html", "deep", "text", "bytes", "endless", "null", "gzip", "206"],
)  # fmt: skip
def test_answers_that_are_no_listing_are_sentences(hub, visitor, where, answer, words):
    hub.always[where] = answer
    with pytest.raises(DataError, match=words):
        visitor.get()
    assert not visitor.folder.exists() and hub.sent < 150e6


def test_half_of_a_listing_is_asked_for_again(hub, visitor):
    hub.faults["/revision/main"] = [body(b'{"sha": ', declared=500), cut_after(5)]
    visitor.get()
    assert len(hub.asked("/revision/")) == 3


def test_a_listing_without_an_end_is_given_up(hub, visitor, monkeypatch):
    monkeypatch.setattr("nemo_vfm.models.hub.hub_listing.MOST_FILES", 500)
    path = f"/api/models/acme/tiny-video/tree/{'a' * 39}1"
    hub.always[path] = lambda handler: handler.send_json([], Link=f'<{hub.url}{path}?cursor=1>; rel="next"')
    with pytest.raises(DataError, match="files, or never ends"):
        visitor.get()


def test_a_next_page_elsewhere_is_refused(hub, visitor):
    hub.page = 2
    hub.always["/tree/" + "a" * 39 + "1"] = lambda handler: handler.send_json(
        [], Link='<http://127.0.0.1:9/api/secrets?x=1>; rel="next"'
    )
    with pytest.raises(DataError, match="something else as the next page"):
        visitor.get()


@pytest.mark.parametrize("commit", ["main", "A" * 40, "a" * 39, 7, None, ["a" * 40]])
def test_a_revision_that_is_no_commit_is_refused(hub, visitor, commit):
    hub.always["/revision/main"] = lambda handler: handler.send_json({"sha": commit})
    with pytest.raises(DataError, match="does not say which commit"):
        visitor.get()


def test_what_may_pass_is_tried_again_and_not_for_ever(hub, visitor):
    hub.faults["/revision/main"] = [status(429, Retry_After="86400"), status(503)]
    hub.faults["cdn:" + WEIGHTS] = [status(403, b"expired"), status(500)]
    visitor.get()
    assert visitor.files() == SAFE
    hub.always["README.md"] = status(429)
    (visitor.folder / "README.md").unlink()
    with pytest.raises(HubError, match=r"README\.md did not come in 4 tries; the last error: .* answered 429"):
        visitor.get()


@pytest.mark.parametrize(("code", "words"), [(404, "no such model"), (401, "HF_TOKEN"), (403, "accept"), (418, "418")])
def test_a_refusal_is_a_sentence_at_once(hub, visitor, code, words):
    hub.always["/revision/main"] = status(code, b"\x1b[2J", X_Error_Code="Gated\x1b[2JRepo")
    with pytest.raises((UserError, DataError), match=words) as caught:
        visitor.get()
    assert "\x1b" not in str(caught.value) and len(hub.requests) == 1 and not visitor.folder.exists()
