"""Tests that scores are appended to captions."""

from fractions import Fraction

import pytest

from nemo_vfm.curate.caption.caption_types import CaptionDraft
from nemo_vfm.curate.caption.caption_writer import write_captions
from nemo_vfm.curate.caption.conditioned import ScoreConditioned
from nemo_vfm.curate.caption.description import Description
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.shards.clip_id import Clip

FACTS = {"aesthetic score": "aesthetic", "motion score": "motion.global_mean", "camera motion": "camera.motion"}
SCORES = {"aesthetic": 5.4567, "motion.global_mean": 0.0024, "camera.motion": "pan left"}


def record(scores):
    clip = Clip("0" * 64, 0, 12, 0, 12, Fraction(1, 12))
    return ClipRecord(clip, "a.mp4", (), 12.0, 64, 48, 1_000_000, scores=scores)


def told(text, scores, **changes):
    (caption,) = ScoreConditioned(facts=FACTS, **changes).edit([CaptionDraft("k", record(scores), text)])
    return caption.text


def test_scores_and_labels_are_said_in_the_order_given():
    expected = "A cat. aesthetic score: 5.5, motion score: 0.0024, camera motion: pan left."
    assert told("A cat.", SCORES) == expected


def test_a_score_that_a_clip_lacks_is_left_out_and_without_any_the_caption_stays():
    assert told("A cat.", {"aesthetic": 5.0}) == "A cat. aesthetic score: 5."
    assert told("A cat.", {}) == "A cat."


def test_what_is_known_of_every_clip_can_be_told_too():
    (caption,) = ScoreConditioned(facts={"seconds": "duration_s"}).edit([CaptionDraft("k", record({}), "A cat.")])
    assert caption.text == "A cat. seconds: 1."


def test_the_template_is_free_and_a_caption_is_never_taken_for_one():
    template = "[{facts}] {caption}"
    assert told("{facts} {0.__class__} {{caption}}", {"aesthetic": 5.0}, template=template) == (
        "[aesthetic score: 5] {facts} {0.__class__} {{caption}}"
    )


def test_the_clip_says_what_the_caption_was_before_and_other_scores_need_no_model(tmp_path):
    captioners = {"description": Description(), "conditioned": ScoreConditioned(facts=FACTS)}
    (one,), (two,) = first, second = [record(SCORES)], [record({**SCORES, "aesthetic": 2.0})]
    write_captions(first, captioners, lambda r: tmp_path, tmp_path)
    write_captions(second, captioners, lambda r: tmp_path, tmp_path)
    assert (
        one.caption
        == "a 1.0 s video, 64x48, 12 fps. aesthetic score: 5.5, motion score: 0.0024, camera motion: pan left."
    )
    assert "aesthetic score: 2," in two.caption and not list(tmp_path.iterdir())
    assert one.caption_facts["caption_edits"][0]["instead_of"] == "a 1.0 s video, 64x48, 12 fps"


@pytest.mark.parametrize(
    "changes", [{"facts": {}}, {"facts": FACTS, "digits": 0}, {"facts": FACTS, "template": "{facts}"}]
)
def test_settings_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match=r"must|needs"):
        ScoreConditioned(**changes)
