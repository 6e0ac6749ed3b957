"""Tests that stories follow from the seed, held-out ones are never trained on, and a kill is harmless."""

import json
import math
import zlib
from pathlib import Path

import pytest

from nemo_vfm.core.types.job import Job, Run
from nemo_vfm.metrics.story_grammar import FRUITS, HE, SHE
from nemo_vfm.synth import make_stories
from nemo_vfm.synth.make_stories import TellStories, beginnings, story


def texts(folder: Path) -> list[str]:
    files = sorted(folder.glob("*.jsonl"))
    assert files
    return [json.loads(line)["text"] for file in files for line in file.read_text().splitlines()]


def test_a_story_depends_on_seed_and_number_alone() -> None:
    assert story(3, 10) == story(3, 10) != story(3, 11)
    assert story(3, 10) != story(4, 10)
    assert len({story(0, number).text for number in range(1000)}) == 1000


def test_held_out_combinations_are_never_trained_on_and_hold_every_word() -> None:
    trained, held_out = (set(beginnings(held_out=held_out)) for held_out in (False, True))
    assert not trained & held_out and (len(trained), len(held_out)) == (504, 72)
    for place in range(3):  # each name, colour and thing, so that nothing is asked that was never read
        assert {one[place] for one in held_out} == {one[place] for one in trained}
    for number in range(100):
        told = story(0, number, held_out=True).sentences
        who, owned = told[0].split()[2], told[1].split(" had a ")[1].split(" and ")[0]
        assert (who, *owned.split()) in held_out


def test_nats_are_those_of_the_choices_made() -> None:
    one = next(found for n in range(100) if len((found := story(1, n)).sentences) == 7)  # one event, no swap
    number = make_stories.NUMBERS.index(one.sentences[1].split()[-2])
    changes = min(3, number) + 3
    told = 2 if one.sentences[3].startswith(("She", "He")) else 1  # eaten or given
    choices = [len(beginnings(held_out=False)), 11, 6, len(FRUITS), 5, 6, 8, 3, 3, changes, told, 2, 4]
    assert one.nats == pytest.approx(sum(map(math.log, choices)))
    assert len(SHE + HE) == 12


def test_stories_are_less_than_what_a_packer_of_bytes_makes_of_them() -> None:
    """There is something to learn: knowing the grammar beats knowing letters several times over."""
    told = [story(0, number) for number in range(500)]
    packed_nats = 8 * math.log(2) * len(zlib.compress("".join(one.text for one in told).encode(), 9)) / len(told)
    assert packed_nats > 5 * sum(one.nats for one in told) / len(told)


def test_the_job_writes_both_parts_and_does_nothing_again(tmp_path: Path) -> None:
    job = TellStories(num_stories=25, num_held_out=5, per_file=10)
    first = job.run(Run(tmp_path, seed=2))
    assert isinstance(job, Job) and not first.did_nothing
    assert first.figures == {"stories": 25, "held_out": 5, "nats_per_story": pytest.approx(24, abs=4)}
    assert texts(tmp_path / "train") == [story(2, n).text for n in range(25)]
    assert texts(tmp_path / "held_out") == [story(2, n, held_out=True).text for n in range(5)]
    again = job.run(Run(tmp_path, seed=2))
    assert again.did_nothing and (again.figures, again.summary) == (first.figures, first.summary)


def test_what_another_seed_or_a_kill_left_is_replaced(tmp_path: Path) -> None:
    TellStories(num_stories=25, num_held_out=5, per_file=5).run(Run(tmp_path, seed=1))
    (tmp_path / "stories.json").write_text('{"asked"')  # as a kill leaves it on some file systems
    TellStories(num_stories=12, num_held_out=0, per_file=5).run(Run(tmp_path, seed=2))
    assert texts(tmp_path / "train") == [story(2, n).text for n in range(12)]
    assert not list((tmp_path / "held_out").iterdir())


@pytest.mark.parametrize("wrong", [{"num_stories": 0}, {"num_held_out": -1}, {"per_file": 0}])
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TellStories(**wrong)
