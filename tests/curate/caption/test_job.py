"""Tests that the recipe for clips writes captions with their source, with each set of captioners."""

import json
import socket

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.core.network.ssrf_guard import service_url
from nemo_vfm.data.shards.shard_files import ShardSet
from tests.support.chat_server import answer, chat_server, status
from tests.support.films import pan, write_film
from tests.support.repository import ROOT

RECIPE = str(ROOT / "recipes/curation/clips.yaml")
KEY = "canary-key-5531-x"


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    for seed in range(2):
        write_film(folder / f"{seed}.mp4", pan(seed))
    return folder


def run(videos, folder, *words):
    return main(["run", RECIPE, f"run_dir={folder}", f"source.path={videos}", *words])


def endpoint(server, *more):
    place = "captions.vlm.chat.endpoint"
    return ["captions=endpoint", f"{place}.url={server.url}", "captions.vlm.tries=1",
            "captions.vlm.chat.model=tiny-vlm", *more, "--allow-host",
            f"{service_url(server.url).origin}=CANARY_API_KEY"]  # fmt: skip


def told(folder):
    shards = ShardSet(folder / "shards")
    return [json.loads(shards.read(entry, "json")) for entry in shards.entries]


def test_another_prompt_asks_again_and_nothing_else_is_done_again(videos, tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    with chat_server() as server:
        server.reply = lambda question: answer(f"<script>alert(1)</script> {KEY} ${{env:HOME}}")
        assert run(videos, tmp_path / "run", *endpoint(server), "keep_clips=true") == 0
        media = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "work" / "clips").rglob("*.mp4")}
        assert len(server.questions) == 2 == len(media) and {f["caption_by"] for f in told(tmp_path / "run")} == {
            "endpoint"
        }
        assert run(videos, tmp_path / "run", *endpoint(server), "keep_clips=true") == 0
        assert len(server.questions) == 2, "a second run asks nothing"
        server.reply = lambda question: answer("briefly")
        assert (
            run(
                videos,
                tmp_path / "run",
                *endpoint(server, "keep_clips=true", "captions.vlm.prompt=Be brief.", "--allow", "captions.vlm.prompt"),
            )
            == 0
        )
    assert [facts["caption"] for facts in told(tmp_path / "run")] == ["briefly"] * 2 and len(server.questions) == 4
    assert media == {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "work" / "clips").rglob("*.mp4")}


def test_the_key_is_in_no_file_of_the_run_and_the_report_shows_a_caption_as_text(videos, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    with chat_server() as server:
        server.faults = [status(500, KEY.encode())]
        server.reply = lambda question: answer(
            f"<script>alert('{KEY}')</script><img src=x onerror=alert(1)>", model=KEY
        )
        assert run(videos, tmp_path / "run", *endpoint(server)) == 0
        assert main(["explain", str(tmp_path / "run")]) in (0, 2)
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert KEY.encode() not in written and KEY not in "".join(capfd.readouterr())
    page = (tmp_path / "run/report.html").read_text()
    assert "alert(&#39;***&#39;)" in page and "<img src=x" not in page and "<script>alert" not in page


def test_a_key_that_is_refused_ends_the_run_with_what_to_do_and_no_half_written_shards(
    videos, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    with chat_server() as server:
        server.always = status(401, f"bad key {KEY}".encode())
        assert run(videos, tmp_path / "run", *endpoint(server)) == 2
    said = "".join(capfd.readouterr())
    assert "is the key correct?" in said and KEY not in said and not (tmp_path / "run/shards").exists()


def test_nothing_is_sent_to_a_host_that_only_the_recipe_names(videos, tmp_path, capfd):
    with chat_server() as server:
        words = ["captions=endpoint", f"captions.vlm.chat.endpoint.url={server.url}", "captions.vlm.chat.model=m"]
        assert run(videos, tmp_path / "run", *words) == 2
    origin = service_url(server.url).origin
    said = "".join(capfd.readouterr())
    assert f"nothing is sent to {origin} until you allow it" in said and "--allow-host 127.0.0.1:" in said
    assert not server.paths


@pytest.mark.parametrize(
    ("url", "allowed", "words"),
    [
        ("http://127.0.0.1:9/v1", "127.0.0.1:8", "nothing is sent to http://127.0.0.1:9"),
        ("http://169.254.169.254/v1", "169.254.169.254", "hands out cloud credentials"),
        (
            "https://no-such-host.invalid/v1",
            "no-such-host.invalid",
            "Is the URL https://no-such-host.invalid/v1 correct?",
        ),
        ("https://203.0.113.9/v1", "https://203.0.113.9=NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_told_before_a_video_is_opened(
    videos, tmp_path, capfd, monkeypatch, url, allowed, words
):
    def unknown(*_, **__):
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    settings = ["captions=endpoint", f"captions.vlm.chat.endpoint.url={url}", "captions.vlm.chat.model=m"]
    assert run(videos, tmp_path / "run", *settings, "--allow-host", allowed) == 2
    assert words in "".join(capfd.readouterr())
    assert not (tmp_path / "run" / "work").exists(), "nothing was probed, scored or encoded"


def test_a_whole_run_needs_no_key_to_be_told_so_but_one_with_clips_to_encode_does(videos, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    with chat_server() as server:
        server.reply = lambda question: answer("a wall")
        settings = [*endpoint(server), "keep_clips=true"]
        assert run(videos, tmp_path / "run", *settings) == 0
        monkeypatch.delenv("CANARY_API_KEY")
        assert run(videos, tmp_path / "run", *settings) == 0
        assert "Nothing to do" in capfd.readouterr().out
        more = ["transcode.crf=30", "--allow", "transcode.crf"]
        assert run(videos, tmp_path / "run", *settings, *more) == 2
    media = list((tmp_path / "run" / "work" / "clips").rglob("*.mp4"))
    assert "CANARY_API_KEY" in capfd.readouterr().err and len(media) == 2, "those of the first run"


def test_scores_in_captions_reach_the_shards(videos, tmp_path):
    assert run(videos, tmp_path / "run", "captions=conditioned") == 0
    for facts in told(tmp_path / "run"):
        assert f"motion score: {facts['scores']['motion']:.2g}, sharpness score:" in facts["caption"]
        assert facts["caption"].startswith(facts["caption_edits"][0]["instead_of"])


def test_a_local_model_captions_the_clips(videos, tmp_path):
    pytest.importorskip("transformers", reason="needs the extra transformers")
    from tests.support.tiny_models import tiny_vlm

    folder = tiny_vlm(tmp_path / "tiny-vlm")
    words = [
        "captions=vlm_folder",
        f"captions.vlm.folder={folder}",
        "captions.vlm.num_frames=2",
        "captions.vlm.max_tokens=4",
    ]
    assert run(videos, tmp_path / "run", *words) == 0
    facts = told(tmp_path / "run")
    assert {f["caption_by"] for f in facts} == {"hugging_face"} and {f["caption_model"] for f in facts} == {"tiny-vlm"}
    assert all(f["caption_windows"][0]["status"] == "truncated" for f in facts)
