"""Tests that a server's captions reach their own clips, and that its faults are reported as such."""

import base64
import json
import random
import time
from fractions import Fraction

import cv2
import numpy as np
import pytest

from nemo_vfm.asking.pace import Pace
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.endpoint import Endpoint, EndpointDenied
from nemo_vfm.curate.caption.caption_types import Windows
from nemo_vfm.curate.caption.caption_writer import write_captions
from nemo_vfm.curate.caption.description import Description
from nemo_vfm.curate.caption.endpoint_captioner import EndpointCaptioner
from nemo_vfm.curate.output.write_outputs import clip_json
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.shards.clip_id import Clip
from nemo_vfm.data.video.decode import read_all
from nemo_vfm.data.video.encode import encode_mp4
from tests.support.chat_server import allowed, answer, chat_server, half, hang, status

KEY = "canary-key-5531-x"
LEVELS = [20, 60, 100, 140, 180, 220]


def at_once(number, **changes):
    return Pace(start=number, most=number, max_wait_s=0.01, **changes)


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    """Six films of 12 frames, each of one grey."""
    folder = tmp_path_factory.mktemp("media")
    for number, level in enumerate(LEVELS):
        encode_mp4(folder / f"{record(number).clip.id}.mp4", np.full((12, 48, 64, 3), level, np.uint8), 12)
    return folder


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    with chat_server() as state:
        state.reply = by_looking
        yield state


def record(number, **facts):
    clip = Clip(f"{number:064x}", 0, 12, 0, 12, Fraction(1, 12))
    return ClipRecord(clip, f"{number}.mp4", (), 12.0, 64, 48, 1_000_000, **facts)


def pictures(question):
    """What is shown in a question, decoded."""
    for part in question["messages"][0]["content"][1:]:
        kind = part["type"]
        head, _, data = part[kind]["url"].partition(",")
        assert head in ("data:image/jpeg;base64", "data:video/mp4;base64")
        raw = base64.b64decode(data)
        yield from read_all(raw) if kind == "video_url" else [cv2.imdecode(np.frombuffer(raw, np.uint8), 1)]


def by_looking(question):
    """The grey that is seen; in no particular time, so that answers overtake each other."""
    time.sleep(random.Random(repr(question)).uniform(0, 0.02))
    level = float(np.mean([picture.mean() for picture in pictures(question)]))
    return answer(f"a wall of grey {min(LEVELS, key=lambda known: abs(known - level))}")


def captioner(server, **changes):
    endpoint = Endpoint(url=server.url, permissions=allowed(server.url, "CANARY_API_KEY"), timeout_s=5)
    settings = {"tries": 2, "pace": at_once(8)} | changes
    return EndpointCaptioner(chat=Chat(endpoint=endpoint, model="tiny-vlm"), **settings)


def write(records, media, folder, **captioners):
    return write_captions(records, captioners, lambda r: media / f"{r.clip.id}.mp4", folder)


@pytest.mark.parametrize("send", ["frames", "video"])
def test_each_clip_gets_the_words_about_its_own_pictures(server, media, tmp_path, send):
    records = [record(number) for number in range(6)]
    told = write(records, media, tmp_path, vlm=captioner(server, send=send, pace=at_once(4)))
    assert [r.caption for r in records] == [f"a wall of grey {level}" for level in LEVELS]
    assert 1 < server.max_at_once <= 4 and told.tokens_in == 66
    assert len(list(pictures(server.questions[0]))) == (12 if send == "video" else 8)
    facts = clip_json(records[0])
    assert (facts["caption_by"], facts["caption_model"], facts["caption_revision"]) == ("endpoint", "tiny-vlm", "fp_1")
    assert facts["caption_status"] == "success" and len(facts["caption_prompt_hash"]) == 16


def test_pictures_are_made_smaller_and_are_those_of_the_window(server, media, tmp_path):
    vlm = captioner(server, longest_px=32, num_frames=3, windows=Windows(size_frames=6, min_last_frames=6))
    write([record(2)], media, tmp_path, vlm=vlm)
    assert [[p.shape for p in pictures(q)] for q in server.questions] == [[(24, 32, 3)] * 3] * 2
    write([record(2)], media, tmp_path, vlm=captioner(server, send="video", windows=Windows(6, 6)))
    assert [len(list(pictures(q))) for q in server.questions[2:]] == [6, 6]


def test_a_fault_costs_its_own_clip_only_and_is_not_taken_for_a_caption(server, media, tmp_path):
    server.reply = lambda question: {"choices": []} if "grey 100" in str(by_looking(question)) else by_looking(question)
    records = [record(number) for number in range(6)]
    told = write(records, media, tmp_path, vlm=captioner(server), description=Description())
    assert [r.caption_by for r in records] == ["endpoint"] * 2 + ["description"] + ["endpoint"] * 3
    assert told.failures["vlm"].total() == 1 and "choices[0]" in records[2].caption_facts["caption_failures"]["vlm"]
    server.reply = by_looking
    before = len(server.questions)
    write(again := [record(number) for number in range(6)], media, tmp_path, vlm=captioner(server))
    assert len(server.questions) == before + 1 and again[2].caption == "a wall of grey 100"


def test_passing_faults_leave_no_trace(server, media, tmp_path):
    server.faults = [status(500), half, status(429, b"", Retry_After="100000"), status(200, b"{")]
    records = [record(number) for number in range(6)]
    vlm = captioner(server, pace=at_once(1), tries=5)
    assert not write(records, media, tmp_path, vlm=vlm).failures
    assert [r.caption for r in records] == [f"a wall of grey {level}" for level in LEVELS]


def test_a_key_that_is_revoked_in_the_middle_stops_the_run_and_what_was_paid_for_is_kept(server, media, tmp_path):
    server.faults = [None, None, None]
    server.always = status(401, f"key {KEY} was revoked".encode())
    with pytest.raises(EndpointDenied, match="401") as caught:
        write([record(number) for number in range(6)], media, tmp_path, vlm=captioner(server, pace=at_once(1)))
    assert KEY not in repr(caught.value)
    server.always, asked = None, len(server.questions)
    write(records := [record(number) for number in range(6)], media, tmp_path, vlm=captioner(server))
    assert len(server.questions) - asked == 3 and [r.caption[-3:].strip() for r in records] == [f"{v}" for v in LEVELS]


def test_an_endpoint_that_is_out_of_order_ends_the_run_after_some_clips(server, media, tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_vfm.curate.caption.caption_writer.MAX_FAILURES_IN_A_ROW", 4)
    server.always = status(500, b"out of memory")
    with pytest.raises(DataError, match=r"4 times in a row.*500.*out of memory"):
        write([record(number) for number in range(6)], media, tmp_path, vlm=captioner(server, pace=at_once(1)))


def test_an_endpoint_that_takes_no_questions_ends_the_run(server, media, tmp_path):
    server.always = status(503, b"loading")
    with pytest.raises(UserError, match=r"only refusals.*503.*loading"):
        write([record(0), record(1)], media, tmp_path, vlm=captioner(server, pace=at_once(1, patience_s=0.05)))


def test_one_that_hangs_holds_up_nobody_else(server, media, tmp_path):
    server.faults = [hang(30)]
    vlm = captioner(server, pace=at_once(2))
    vlm.chat.endpoint.timeout_s = 0.5
    began = time.monotonic()
    write(records := [record(number) for number in range(6)], media, tmp_path, vlm=vlm)
    assert all(r.caption for r in records) and time.monotonic() - began < 15


def test_a_clip_whose_file_is_damaged_is_a_failure_and_nothing_is_sent(server, media, tmp_path):
    (tmp_path / f"{record(9).clip.id}.mp4").write_bytes(b"no video")
    told = write([record(9)], tmp_path, tmp_path / "kept", vlm=captioner(server))
    assert told.failures["vlm"].total() == 1 and not server.questions


@pytest.mark.parametrize(
    ("change", "asks_again"),
    [({"prompt": "Say it briefly."}, True), ({"num_frames": 4}, True), ({"revision": "r2"}, True),
     ({"send": "video"}, True), ({"pace": at_once(1)}, False)],
)  # fmt: skip
def test_only_what_could_change_the_words_asks_again(server, media, tmp_path, change, asks_again):
    write([record(0)], media, tmp_path, vlm=captioner(server))
    write([record(0)], media, tmp_path, vlm=captioner(server, **change))
    assert len(server.questions) == 1 + asks_again


def test_the_key_is_in_nothing_that_is_kept_or_written_even_if_the_model_repeats_it(server, media, tmp_path, capfd):
    server.reply = lambda question: answer(f"a wall with the text {KEY} on it", model=KEY)
    server.faults = [status(500, KEY.encode()), status(400, KEY.encode())]
    records = [record(number) for number in range(3)]
    told = write(records, media, tmp_path, vlm=captioner(server, pace=at_once(1)))
    kept = (tmp_path / "answers.jsonl").read_text()
    shown = json.dumps([[clip_json(r) for r in records], told.to_json()]) + "".join(capfd.readouterr())
    assert "a wall with the text *** on it" in kept and KEY not in kept + shown


def test_what_the_model_says_is_data_and_one_line(server, media, tmp_path):
    text = "=cmd()|' /C calc'!A0\n../../etc/passwd ${env:HOME} {{7*7}} <script>alert(1)</script>\x1b[31m\u202egnp.exe"
    server.reply = lambda _: answer(text)
    (one,) = records = [record(0)]
    write(records, media, tmp_path, vlm=captioner(server))
    expected = "cmd()|' /C calc'!A0 ../../etc/passwd ${env:HOME} {{7*7}} <script>alert(1)</script> [31mgnp.exe"
    assert one.caption == expected
    assert {path.name for path in tmp_path.iterdir()} == {"answers.jsonl", "answers.jsonl.lock"}


@pytest.mark.parametrize("changes", [{"num_frames": 0}, {"tries": 0}, {"longest_px": 8}, {"prompt": " "}])
def test_settings_that_cannot_be_are_refused(server, changes):
    with pytest.raises(ValueError, match="must"):
        captioner(server, **changes)
