"""Tests that false sizes, hashes, names, ranges and redirects from a hub put no wrong file into a folder."""

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


def parts(download):
    return list((download.folder / ".get").glob("*.part"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (body(RIGHT + b"!"), rf"announced {SIZE + 1:,} bytes, but the commit lists {SIZE:,}"),
        (body(RIGHT[:-1]), rf"announced {SIZE - 1:,} bytes, but the commit lists {SIZE:,}"),
        (endless, rf"sent more than the {SIZE:,} bytes that the commit lists; the download was stopped"),
        (body(WRONG), r"sha256 is \w{64}, but the commit lists \w{64}"),
        (body(b"\x1f\x8b" + RIGHT[2:], Content_Encoding="gzip"), "compressed response, which was not requested"),
    ],
    ids=["longer", "shorter", "endless", "other bytes", "gzip"],
)
def test_bytes_that_do_not_match_the_commit_are_refused_and_deleted(hub, download, fault, words):
    hub.always["cdn:" + WEIGHTS] = fault
    with pytest.raises(DataError, match=rf"(?:^{WEIGHTS}: )?.*{words}"):
        download.get()
    assert WEIGHTS not in download.files() and not parts(download) and not (download.folder / "get.json").exists()
    assert len(hub.asked("cdn GET")) == 1 and hub.sent < 100e6
    hub.always.clear()
    download.get()
    assert download.files() == SAFE


def test_a_small_file_must_have_its_git_hash(hub, download):
    hub.always["model_index.json"] = body(b'{"_class_name": "EvilPipeline"}'[:31].ljust(31))
    with pytest.raises(DataError, match=r"model_index\.json: git hash is \w{40}, but the commit lists \w{40}"):
        download.get()
    assert "model_index.json" not in download.files()


@pytest.mark.parametrize(
    ("header", "value"), [("X_Repo_Commit", LATER), ("X_Linked_Size", "7"), ("X_Linked_Etag", f'"{"0" * 64}"')]
)
def test_contradicting_headers_stop_the_download_before_the_body(hub, download, header, value):
    hub.always["hub:" + WEIGHTS] = status(302, Location=hub.cdn_url + "/x", **{header: value})
    with pytest.raises(DataError, match=f"{WEIGHTS}: the hub now reports"):
        download.get()
    assert not hub.asked("cdn GET") and not parts(download)


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
def test_a_response_with_the_wrong_range_does_not_damage_the_file(hub, download, answer, requests):
    hub.faults["cdn:" + WEIGHTS] = [cut_after(900_000), answer]
    download.get()
    asked = hub.asked(f"cdn GET /acme/tiny-video/resolve/{COMMIT}/{WEIGHTS}")
    assert download.files() == SAFE and len(asked) == requests


def test_a_shorter_range_than_requested_is_kept_and_continued(hub, download):
    piece = status(206, RIGHT[900_000:950_000], Content_Range=f"bytes 900000-949999/{SIZE}")
    hub.faults["cdn:" + WEIGHTS] = [cut_after(900_000), piece]
    download.get()
    assert download.files() == SAFE and "bytes=950000-" in [one.get("Range") for one in hub.headers]


def test_a_file_that_changed_between_two_pieces_is_downloaded_again(hub, download):
    hub.faults["cdn:" + WEIGHTS] = [lambda handler: half_of(handler, WRONG)]
    download.get()
    assert download.files() == SAFE
    assert [one.get("Range") for one in hub.headers].count("bytes=500000-") == 2  # from the hub and from the CDN


def half_of(handler, data):
    """A fault: declare the full length, then send only the first bytes."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[:500_000])
    handler.close_connection = True


def test_a_server_that_changes_the_file_every_time_is_given_up(hub, download):
    hub.always["cdn:" + WEIGHTS] = lambda handler: (
        half_of(handler, WRONG) if "Range" not in handler.headers else handler.send_file(WRONG)
    )
    with pytest.raises(DataError, match="sha256 is"):
        download.get()
    assert not parts(download) and WEIGHTS not in download.files()


def test_a_download_that_stops_advancing_is_given_up(hub, download):
    wrong = status(206, b"x", Content_Range=f"bytes 0-0/{SIZE}")
    hub.always["cdn:" + WEIGHTS] = lambda handler: (wrong if "Range" in handler.headers else cut_after(2_000_000))(
        handler
    )
    with pytest.raises(HubError, match="failed after 4 attempts"):
        download.get()


def test_a_very_slow_body_counts_as_a_broken_connection(hub, download, monkeypatch):
    monkeypatch.setattr(file_download, "_SLOW_S", 0.05)

    def slow_body(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(SIZE))
        handler.end_headers()
        for at in range(SIZE):  # takes hours unless the client disconnects
            handler.wfile.write(RIGHT[at : at + 1])
            handler.wfile.flush()
            time.sleep(0.01)

    hub.faults["cdn:" + WEIGHTS] = [slow_body]
    download.get()
    assert download.files() == SAFE


@pytest.mark.parametrize(
    "path",
    ["../evil.json", "/etc/evil", "a/../../evil", "a//b", "./a", "a/.", "a\\..\\b", "a\x00b", "a\nb", "a\u202egnp.json",
     ".git/hooks/post-checkout", "a/.GIT/config", "get.json", "GET.JSON", ".get/x", "x" * 300, "a/" * 40 + "b", "",
     "a\ud800b"],
)  # fmt: skip
def test_unsafe_file_names_are_refused_before_any_download(hub, download, path):
    hub.change_entries = lambda entries: [*entries, {**entries[-1], "path": path}]
    with pytest.raises(DataError, match="lists a file that is refused"):
        download.get()
    assert not hub.asked("/resolve/") and not download.folder.exists()


@pytest.mark.parametrize("path", ["readme.MD", "VAE/x", "model_index.json", "vae", "README.md/x", "re\u0301sume\u0301"])
def test_names_that_collide_on_some_disks_are_refused(hub, download, path):
    hub.change_entries = lambda entries: [{**entries[-1], "path": "r\u00e9sum\u00e9"}, *entries,
                                          {**entries[-1], "path": path}]  # fmt: skip
    with pytest.raises(DataError, match="the same name on some disks"):
        download.get()
    assert not hub.asked("/resolve/")


@pytest.mark.parametrize(
    "change",
    [{"size": -1}, {"size": 1.5}, {"size": True}, {"size": 10**18}, {"size": "7"}, {"oid": "main"}, {"oid": None},
     {"lfs": {"oid": "0" * 64, "size": 8}}, {"lfs": {"oid": "0" * 40, "size": 7}}, {"path": 3}],
)  # fmt: skip
def test_an_invalid_size_or_hash_is_refused(hub, download, change):
    hub.change_entries = lambda entries: [{**one, **(change if one["path"] == "README.md" else {})} for one in entries]
    with pytest.raises(DataError, match="the hub's listing"):
        download.get()
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
def test_a_response_that_is_not_a_listing_is_refused_with_a_reason(hub, download, where, answer, words):
    hub.always[where] = answer
    with pytest.raises(DataError, match=words):
        download.get()
    assert not download.folder.exists() and hub.sent < 150e6


def test_an_incomplete_listing_is_requested_again(hub, download):
    hub.faults["/revision/main"] = [body(b'{"sha": ', declared=500), cut_after(5)]
    download.get()
    assert len(hub.asked("/revision/")) == 3


def test_an_endless_listing_is_given_up(hub, download, monkeypatch):
    monkeypatch.setattr("nemo_vfm.models.hub.hub_file.MAX_FILES", 500)
    path = f"/api/models/acme/tiny-video/tree/{'a' * 39}1"
    hub.always[path] = lambda handler: handler.send_json([], Link=f'<{hub.url}{path}?cursor=1>; rel="next"')
    with pytest.raises(DataError, match="files or too many pages"):
        download.get()


def test_a_next_page_with_another_path_is_refused(hub, download):
    hub.page = 2
    hub.always["/tree/" + "a" * 39 + "1"] = lambda handler: handler.send_json(
        [], Link='<http://127.0.0.1:9/api/secrets?x=1>; rel="next"'
    )
    with pytest.raises(DataError, match="next page of its listing has another path"):
        download.get()


@pytest.mark.parametrize("commit", ["main", "A" * 40, "a" * 39, 7, None, ["a" * 40]])
def test_a_resolved_revision_that_is_not_a_commit_is_refused(hub, download, commit):
    hub.always["/revision/main"] = lambda handler: handler.send_json({"sha": commit})
    with pytest.raises(DataError, match="did not resolve"):
        download.get()


def test_temporary_failures_are_retried_a_limited_number_of_times(hub, download):
    hub.faults["/revision/main"] = [status(429, Retry_After="86400"), status(503)]
    hub.faults["cdn:" + WEIGHTS] = [status(403, b"expired"), status(500)]
    download.get()
    assert download.files() == SAFE
    hub.always["README.md"] = status(429)
    (download.folder / "README.md").unlink()
    with pytest.raises(HubError, match=r"README\.md failed after 4 attempts; last error: .* answered 429"):
        download.get()


@pytest.mark.parametrize(("code", "words"), [(404, "no such model"), (401, "HF_TOKEN"), (403, "accept"), (418, "418")])
def test_a_permanent_error_is_reported_without_retries(hub, download, code, words):
    hub.always["/revision/main"] = status(code, b"\x1b[2J", X_Error_Code="Gated\x1b[2JRepo")
    with pytest.raises((UserError, DataError), match=words) as caught:
        download.get()
    assert "\x1b" not in str(caught.value) and len(hub.requests) == 1 and not download.folder.exists()
