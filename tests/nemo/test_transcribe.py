"""Tests that transcripts of clips with tones lie beside their own clips.

Most tests use a recognizer of ten lines; the last ones a model of NeMo's, restored from an archive that it wrote.
"""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from nemo_vfm.core.errors import MissingPackage, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.output.write_outputs import write_shards
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.shards.clip_id import Clip, source_id
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.video.audio import read_audio
from nemo_vfm.nemo.transcribe import NeMoSpeech, Recogniser, Transcribe, _text
from tests.support.sounding import TONES, pitch, sounding_film

WORDS = {220.0: "low", 440.0: "middle", 880.0: "high", 1320.0: "highest"}


class Ear:
    """Names the tone; notes how often it was asked."""

    def __init__(self, stamp="ear/1", fails=()):
        self.stamp, self.fails, self.heard = stamp, fails, 0

    def transcribe(self, samples):
        self.heard += 1
        if self.heard in self.fails:
            raise ValueError("the ear hurts")
        found = pitch(samples, 16_000)
        return WORDS[min(WORDS, key=lambda tone: abs(tone - found))] if np.abs(samples).max() > 0.01 else ""

    def sample_rate_hz(self):
        return 16_000

    def fingerprint(self):
        return self.stamp


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    (folder / "deep").mkdir()
    sounding_film(folder / "deep" / "a.mp4")
    sounding_film(folder / "b.mkv", TONES[::-1])
    sounding_film(folder / "c.mp4", TONES[:2], silent=True)
    return folder


@pytest.fixture(scope="module")
def shards(videos, tmp_path_factory):
    """A clip a second of each film."""
    folder = tmp_path_factory.mktemp("clips")
    (folder / "any.mp4").write_bytes(b"pictures only")
    records = []
    for name, seconds in (("deep/a.mp4", 4), ("b.mkv", 4), ("c.mp4", 2)):
        identity = source_id(videos / name)
        for second in range(seconds):
            clip = Clip(identity, 12 * second, 12 * second + 12, 12 * second, 12 * second + 12, Fraction(1, 12))
            records.append(ClipRecord(clip, name, (), 12.0, 64, 48, 1_000_000))
    write_shards(folder / "shards", records, lambda record: folder / "any.mp4", 4, {})
    return folder / "shards"


def told(folder: Path):
    shards = ShardSet(folder / "shards")
    return [json.loads(shards.read(entry, "json")) for entry in shards.entries]


def job(shards, videos, ear, **changes):
    return Transcribe(shards=shards, videos=videos, speech=ear, **changes)


def test_each_clip_gets_what_is_heard_in_its_own_second_of_its_own_film(shards, videos, tmp_path):
    outcome = job(shards, videos, Ear()).run(Run(tmp_path))
    up = ["low", "middle", "high", "highest"]
    assert [facts["transcript"] for facts in told(tmp_path)] == [*up, *up[::-1], "", ""]
    assert [facts["transcript_status"] for facts in told(tmp_path)] == ["success"] * 8 + ["no_sound"] * 2
    assert outcome.summary == "10 clips: 2 no sound, 8 success"
    before, after = ShardSet(shards), ShardSet(tmp_path / "shards")
    for old, new in zip(before.entries, after.entries, strict=True):
        assert (old.key, old.index, before.read(old, "mp4")) == (new.key, new.index, after.read(new, "mp4"))


def test_a_second_run_does_nothing_and_another_model_hears_all_again(shards, videos, tmp_path):
    for ear, heard in ((Ear(), 8), (Ear(), 0), (Ear("ear/2"), 8)):
        done = job(shards, videos, ear).run(Run(tmp_path))
        assert ear.heard == heard and done.did_nothing == (heard == 0)


def test_a_failure_costs_its_own_clip_and_is_tried_again_alone(shards, videos, tmp_path):
    job(shards, videos, Ear(fails=(3,))).run(Run(tmp_path))
    failed = told(tmp_path)[2]
    assert (failed["transcript"], failed["transcript_status"]) == ("", "error") and "hurts" in failed[
        "transcript_failure"
    ]
    again = Ear()
    job(shards, videos, again).run(Run(tmp_path))
    assert again.heard == 1 and told(tmp_path)[2]["transcript"] == "high"


def test_a_killed_run_goes_on(shards, videos, tmp_path):
    class Dies(Ear):
        def transcribe(self, samples):
            if self.heard == 5:
                raise KeyboardInterrupt
            return super().transcribe(samples)

    with pytest.raises(KeyboardInterrupt):
        job(shards, videos, Dies()).run(Run(tmp_path))
    rest = Ear()
    job(shards, videos, rest).run(Run(tmp_path))
    assert rest.heard == 3 and len(told(tmp_path)) == 10


def test_a_film_that_has_changed_or_gone_is_a_failure_of_its_clips(shards, videos, tmp_path):
    others = tmp_path / "videos"
    (others / "deep").mkdir(parents=True)
    sounding_film(others / "deep/a.mp4", TONES[::-1])
    job(shards, others, Ear()).run(Run(tmp_path / "run"))
    failures = [facts.get("transcript_failure", "") for facts in told(tmp_path / "run")]
    assert all("has changed" in text for text in failures[:4]) and all("there is no" in text for text in failures[4:])


def test_a_source_that_leads_out_of_the_folder_is_not_opened(videos, tmp_path):
    clip = Clip(source_id(videos / "b.mkv"), 0, 12, 0, 12, Fraction(1, 12))
    (tmp_path / "any.mp4").write_bytes(b"x")
    record = ClipRecord(clip, "../b.mkv", (), 12.0, 64, 48, 1_000_000)
    write_shards(tmp_path / "shards", [record], lambda _: tmp_path / "any.mp4", 4, {})
    job(tmp_path / "shards", videos / "deep", Ear()).run(Run(tmp_path / "run"))
    (facts,) = told(tmp_path / "run")
    assert "is outside" in facts["transcript_failure"]


def test_what_is_heard_is_hostile_text_too(shards, videos, tmp_path):
    class Sings(Ear):
        def transcribe(self, samples):
            return "=cmd()\n\u202e\x1b[31m {{7*7}}"

    job(shards, videos, Sings()).run(Run(tmp_path))
    assert told(tmp_path)[0]["transcript"] == "cmd() [31m {{7*7}}"


@pytest.mark.parametrize(
    ("found", "text"),
    [(["a"], "a"), ([type("H", (), {"text": "b"})()], "b"), ((["c"], [["c", "d"]]), "c")],
    ids=["text", "hypothesis", "best and all"],
)
def test_every_kind_of_answer_that_nemo_gives_is_read(found, text):
    assert _text(found) == text


def test_without_nemo_the_sentence_says_what_to_install(shards, videos, tmp_path):
    (tmp_path / "m.nemo").write_bytes(b"")
    speech = NeMoSpeech(model=tmp_path / "m.nemo")
    assert isinstance(speech, Recogniser)
    try:
        import nemo.collections.asr  # noqa: F401
    except ImportError:
        with pytest.raises(MissingPackage, match=r"nemo-toolkit\[asr\]"):
            job(shards, videos, speech).run(Run(tmp_path))
    with pytest.raises(UserError, match="there is no model"):
        NeMoSpeech(model=tmp_path / "none.nemo").fingerprint()


def test_a_model_of_nemo_restored_from_its_archive_transcribes_each_clip_by_itself(shards, videos, tmp_path):
    pytest.importorskip("nemo.collections.asr", reason="needs nemo-toolkit[asr]", exc_type=ImportError)
    from nemo.collections.asr.models import EncDecCTCModel

    from tests.support.tiny_speech import tiny_speech

    archive = tiny_speech(tmp_path / "tiny.nemo")
    job(shards, videos, NeMoSpeech(model=archive)).run(Run(tmp_path / "run"))
    found = told(tmp_path / "run")
    alone = EncDecCTCModel.restore_from(str(archive), map_location="cpu").eval()
    for number, (name, second) in enumerate([("deep/a.mp4", s) for s in range(4)] + [("b.mkv", s) for s in range(4)]):
        (said,) = alone.transcribe([read_audio(videos / name, second, second + 1)], batch_size=1, verbose=False)
        assert found[number]["transcript"] == " ".join(said.text.split()), "a random model, heard twice alike"
    assert len({facts["transcript"] for facts in found}) > 2
    assert found[0]["transcript_model"] == NeMoSpeech(model=archive).fingerprint() and found[9]["transcript"] == ""
