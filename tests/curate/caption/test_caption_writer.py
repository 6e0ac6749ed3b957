"""Tests whose caption each clip gets, what is kept, and what stops a run."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.curate.caption.caption_types import Caption, Windows
from nemo_vfm.curate.caption.caption_writer import write_captions
from nemo_vfm.curate.caption.description import Description
from nemo_vfm.curate.output.write_outputs import clip_json
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.shards.clip_id import Clip


def record(number, frames=20, **facts):
    clip = Clip(f"{number:064x}", 0, frames, 0, frames, Fraction(1, 12))
    return ClipRecord(clip, f"{number}.mp4", (), 12.0, 64, 48, 1_000_000, **facts)


class Parrot:
    """Says the key it is asked with, backwards in time; notes what it was asked."""

    def __init__(self, *, wrong=None, stamp="parrot/1", size=256):
        self.wrong, self.stamp, self.size, self.asked = wrong or (lambda caption: caption), stamp, size, []

    def windows(self, num_frames):
        return Windows(size_frames=self.size, min_last_frames=min(128, self.size)).of(num_frames)

    def describe(self, views):
        views = list(views)
        self.asked += [view.key for view in views]
        for view in reversed(views):
            text = f"saw {view.key}"
            yield self.wrong(Caption(view.key, text, model="bird", revision="r1", prompt_hash="p", tokens_out=3))

    def fingerprint(self):
        return self.stamp


class Shout:
    def __init__(self, stamp="shout/1", fails=False):
        self.stamp, self.fails, self.asked = stamp, fails, 0

    def edit(self, drafts):
        for draft in drafts:
            self.asked += 1
            status, text = ("error", "") if self.fails else ("success", draft.text.upper())
            yield Caption(draft.key, text, status, "no breath" if self.fails else None, model="loud")

    def fingerprint(self):
        return self.stamp


def write(records, folder, **captioners):
    return write_captions(records, captioners, lambda record: Path(f"{record.clip.id}.mp4"), folder)


def test_answers_in_another_order_reach_their_own_clips(tmp_path):
    records = [record(number) for number in range(5)]
    write(records, tmp_path, parrot=Parrot())
    assert [r.caption for r in records] == [f"saw {r.clip.id}-0-20" for r in records]
    assert {r.caption_by for r in records} == {"parrot"}


class Says:
    """A captioner that has a text for every clip."""

    def __init__(self, text):
        self.text = text

    def caption(self, record):
        return self.text, "sidecar"


def test_a_given_caption_is_kept_whole_or_counted_as_cut(tmp_path):
    text = " ".join(["word"] * 6000)[:-1]
    assert len(text) == 29_998
    (clip,) = records = [record(1)]
    report = write(records, tmp_path, said=Says(text)).to_json()
    assert clip.caption == text and report["truncated"] == 0
    report = write(records, tmp_path, said=Says(text * 7)).to_json()
    assert len(clip.caption) <= 100_000 and clip.caption == (text * 7)[: len(clip.caption)]
    assert report["truncated"] == 1 and clip.caption_facts["caption_status"] == "truncated"


def test_a_models_caption_that_was_cut_is_counted_whoever_cut_it(tmp_path):
    long, short = "word " * 2000, "word " * 300
    for number, (text, status, size) in enumerate(
        [(long, "success", 256), (short, "truncated", 256), (short, "success", 2)]
    ):
        wrong = lambda caption, text=text, status=status: replace(caption, text=text, status=status)  # noqa: E731
        (clip,) = records = [record(1)]
        report = write(records, tmp_path / str(number), parrot=Parrot(wrong=wrong, size=size)).to_json()
        assert report["truncated"] == 1 and clip.caption_facts["caption_status"] == "truncated"
        assert len(clip.caption) <= 8000 and clip.caption.endswith("word")
    (clip,) = records = [record(1)]
    report = write(records, tmp_path / "whole", parrot=Parrot(), shout=Shout()).to_json()
    assert report["truncated"] == 0 and clip.caption_facts["caption_status"] == "success"


@pytest.mark.parametrize("wrong", ["0" * 32, ""], ids=["of another clip", "of nothing"])
def test_an_answer_that_nobody_asked_for_stops_the_run_and_leaves_nothing_behind(tmp_path, wrong):
    swapped = Parrot(wrong=lambda caption: replace(caption, key=wrong + caption.key[32:]))
    good_first = Parrot(wrong=lambda c: c if c.key.startswith(record(4).clip.id) else swapped.wrong(c))
    with pytest.raises(DataError, match="without being asked"):
        write([record(number) for number in range(5)], tmp_path, parrot=good_first)
    write([record(number) for number in range(5)], tmp_path, parrot=(again := Parrot()))
    assert len(again.asked) == 5, "what was believed before the swap was seen must not be used later"


def test_two_answers_under_one_key_stop_the_run(tmp_path):
    first = record(0).clip.id
    doubled = Parrot(wrong=lambda caption: replace(caption, key=f"{first}-0-20"))
    with pytest.raises(DataError, match="a second time"):
        write([record(number) for number in range(3)], tmp_path, parrot=doubled)


def test_the_first_with_something_to_say_wins_and_the_failure_before_it_is_told(tmp_path):
    mute = Parrot(wrong=lambda caption: Caption(caption.key, status="blocked", failure="it would not say"))
    (one,) = records = [record(0)]
    told = write(records, tmp_path, mute=mute, description=Description(), parrot=Parrot())
    assert one.caption.startswith("a 1.0 s video") and one.caption_by == "description"
    assert one.caption_facts["caption_failures"] == {"mute": "blocked: it would not say"}
    assert told.by == {"description": 1} and told.failures["mute"] == {"blocked: it would not say": 1}


def test_only_kept_clips_are_shown_to_a_model_and_others_get_words_that_cost_nothing(tmp_path):
    dropped, failed, kept = record(0, rule="black"), record(1, message="broken"), record(2)
    parrot = Parrot()
    write([dropped, failed, kept], tmp_path, parrot=parrot, description=Description())
    assert [key[:32] for key in parrot.asked] == [kept.clip.id]
    assert dropped.caption_by == failed.caption_by == "description" and kept.caption_by == "parrot"


def test_a_second_run_asks_nothing_and_says_the_same(tmp_path):
    first, second = ([record(number) for number in range(3)] for _ in range(2))
    write(first, tmp_path, parrot=Parrot())
    again = Parrot()
    told = write(second, tmp_path, parrot=again)
    assert not again.asked and told.asked == 0 and told.tokens_out == 9
    assert [(r.caption, r.caption_by, r.caption_facts) for r in first] == [
        (r.caption, r.caption_by, r.caption_facts) for r in second
    ]


def test_another_captioner_asks_again_and_going_back_costs_nothing(tmp_path):
    old, new, back = Parrot(), Parrot(stamp="parrot/2"), Parrot()
    for parrot in (old, new, back):
        write([record(0)], tmp_path, parrot=parrot)
    assert (len(old.asked), len(new.asked), len(back.asked)) == (1, 1, 0)


def test_a_failure_is_never_kept_and_only_it_is_asked_again(tmp_path):
    bad = f"{record(1).clip.id}-0-20"
    failing = Parrot(wrong=lambda c: Caption(c.key, status="error", failure="500") if c.key == bad else c)
    write([record(0), record(1)], tmp_path, parrot=failing)
    healthy = Parrot()
    write([record(0), record(1)], tmp_path, parrot=healthy)
    assert healthy.asked == [bad]


def test_a_success_without_a_word_is_a_failure(tmp_path):
    (one,) = records = [record(0)]
    write(records, tmp_path, parrot=Parrot(wrong=lambda caption: replace(caption, text=" \x00\u202e ")))
    assert (one.caption, one.caption_by) == ("", "nobody") and not (tmp_path / "answers.jsonl").read_bytes()


def test_a_run_killed_after_some_answers_goes_on_behind_them(tmp_path):
    def dies(caption, said=[]):  # noqa: B006 (it counts)
        said.append(caption)
        if len(said) == 3:
            raise KeyboardInterrupt
        return caption

    with pytest.raises(KeyboardInterrupt):
        write([record(number) for number in range(5)], tmp_path, parrot=Parrot(wrong=dies))
    rest = Parrot()
    write(records := [record(number) for number in range(5)], tmp_path, parrot=rest)
    assert len(rest.asked) == 3 and all(r.caption == f"saw {r.clip.id}-0-20" for r in records)


def test_a_kept_answer_that_was_damaged_or_moved_is_asked_for_again(tmp_path):
    write([record(0), record(1)], tmp_path, parrot=Parrot())
    file = tmp_path / "answers.jsonl"
    a, b = map(json.loads, file.read_text().splitlines())
    file.write_text(json.dumps(a | {"value": b["value"]}) + "\n" + json.dumps(b)[:40] + "\n")
    again = Parrot()
    write([record(0), record(1)], tmp_path, parrot=again)
    assert len(again.asked) == 2


def test_parts_that_work_at_the_same_time_have_journals_of_their_own_and_know_each_others(tmp_path):
    halves = [record(0), record(1)], [record(2), record(3)]
    for number, records in enumerate(halves):
        captioners = {"parrot": Parrot()}
        write_captions(records, captioners, lambda r: Path(f"{r.clip.id}.mp4"), tmp_path, f"part-{number}-of-2")
    again = Parrot()
    write(records := [record(number) for number in range(5)], tmp_path, parrot=again)
    assert again.asked == [f"{record(4).clip.id}-0-20"] and all(r.caption for r in records)


def test_many_failures_in_a_row_stop_the_run(tmp_path):
    broken = Parrot(wrong=lambda caption: Caption(caption.key, status="error", failure="out of memory"))
    with pytest.raises(DataError, match=r"20 times in a row.*out of memory"):
        write([record(number) for number in range(30)], tmp_path, parrot=broken)


def test_a_window_without_an_answer_is_a_failure_of_its_clip(tmp_path):
    class Deaf(Parrot):
        def describe(self, views):
            yield from list(super().describe(views))[1:]

    records = [record(0), record(1)]
    told = write(records, tmp_path, deaf=Deaf())
    assert sorted(r.caption_by for r in records) == ["deaf", "nobody"]
    assert told.failures["deaf"] == {"error: it did not answer": 1}


@pytest.mark.parametrize(
    ("frames", "expected"),
    [(3, []), (4, [(0, 4)]), (256, [(0, 256)]), (383, [(0, 383)]), (384, [(0, 256), (256, 384)]),
     (639, [(0, 256), (256, 639)]), (640, [(0, 256), (256, 512), (512, 640)])],
)  # fmt: skip
def test_windows_cover_a_clip_and_the_last_is_never_short(frames, expected):
    assert Windows().of(frames) == expected


@pytest.mark.parametrize("sizes", [(0, 0), (10, 11), (10, 0)])
def test_windows_that_cannot_be_are_refused(sizes):
    with pytest.raises(ValueError, match="are impossible"):
        Windows(size_frames=sizes[0], min_last_frames=sizes[1])


def test_a_long_clip_gets_the_words_of_all_its_windows_and_says_whose_they_are(tmp_path):
    (one,) = records = [record(0, frames=45)]
    write(records, tmp_path, parrot=Parrot(size=20))
    key = one.clip.id
    assert one.caption == f"saw {key}-0-20 saw {key}-20-45"
    shown = json.loads(json.dumps(clip_json(one)))
    assert [(w["first_frame"], w["last_frame"]) for w in shown["caption_windows"]] == [(0, 20), (20, 45)]
    expected = {"caption_model": "bird", "caption_revision": "r1", "caption_prompt_hash": "p", "caption_tokens_out": 6}
    assert {**expected, "caption_status": "success"}.items() <= shown.items()


def test_an_editor_changes_the_text_and_the_original_is_kept(tmp_path):
    (one,) = records = [record(0)]
    write(records, tmp_path, description=Description(), shout=Shout())
    assert one.caption.startswith("A 1.0 S VIDEO") and one.caption_by == "description"
    (edit,) = one.caption_facts["caption_edits"]
    assert edit["by"] == "shout" and edit["instead_of"].startswith("a 1.0 s video")


class Question(Shout):
    def edit(self, drafts):
        for draft in drafts:
            yield Caption(draft.key, f"{draft.text}?", tokens_in=5, tokens_out=1)


def test_editors_work_one_after_another_and_each_text_on_the_way_is_kept(tmp_path):
    records = [record(number) for number in range(3)]
    told = write(records, tmp_path, parrot=Parrot(), shout=Shout(), question=Question("question/1"))
    for one in records:
        said = f"saw {one.clip.id}-0-20"
        assert one.caption == f"{said.upper()}?" and one.caption_by == "parrot"
        edits = [(edit["by"], edit["instead_of"]) for edit in one.caption_facts["caption_edits"]]
        assert edits == [("shout", said), ("question", said.upper())]
    again = write(
        [record(number) for number in range(3)],
        tmp_path,
        parrot=Parrot(),
        shout=Shout(),
        question=Question("question/1"),
    )
    assert (again.asked, again.tokens_in, again.tokens_out) == (0, told.tokens_in, told.tokens_out)
    assert told.asked == 9 and told.tokens_in >= 15


def test_an_editor_that_fails_leaves_the_text(tmp_path):
    (one,) = records = [record(0)]
    told = write(records, tmp_path, description=Description(), shout=Shout(fails=True))
    assert one.caption.startswith("a 1.0 s video") and told.failures["shout"] == {"error: no breath": 1}


def test_what_an_editor_said_is_kept_by_the_text_it_was_given(tmp_path):
    again, other = Shout(), Shout()
    write([record(0)], tmp_path, description=Description(), shout=Shout())
    write([record(0)], tmp_path, description=Description(), shout=again)
    write([record(0)], tmp_path, parrot=Parrot(), shout=other)
    assert (again.asked, other.asked) == (0, 1)


class Stumbling:
    """Knows every clip but some, at which it does something else."""

    def __init__(self, *, at, how):
        self.at, self.how = at, how

    def caption(self, record):
        return self.how() if record.clip.source_id in self.at else ("seen", "me")


def _raise():
    raise KeyError("scene")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (_raise, "error: KeyError ('scene')"),
        (lambda: 7, "error: it returned int"),
        (lambda: (1, "x"), "error: it returned"),
    ],
    ids=["raises", "no text", "a number for a text"],
)
def test_a_captioner_that_fails_at_one_clip_is_named_and_the_next_one_is_asked(tmp_path, how, words):
    records = [record(number) for number in range(3)]
    told = write(records, tmp_path, first=Stumbling(at={records[1].clip.source_id}, how=how), second=Parrot())
    assert [r.caption_by for r in records] == ["me", "second", "me"]
    assert records[1].caption_facts["caption_failures"]["first"].startswith(words)
    assert told.failures["first"].total() == 1


def test_a_captioner_that_fails_at_every_clip_stops_the_run_with_its_reason(tmp_path):
    records = [record(number) for number in range(200)]
    with pytest.raises(DataError, match=r"first failed \d+ times in a row; the last error: KeyError"):
        write(records, tmp_path, first=Stumbling(at={r.clip.source_id for r in records}, how=_raise))
