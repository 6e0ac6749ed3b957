"""Tests that the grammar accepts its own stories, and rejects one with a contradicting word."""

import pytest

from nemo_vfm.metrics.story_grammar import judge
from nemo_vfm.synth.make_stories import story

RIGHT = (
    "One day Mia went to the park. She had a red ball and three apples. There she met Tom, who had a blue kite. "
    "She gave Tom two apples. Now Mia had one apple. Tom gave her three apples. Now Mia had four apples. "
    "Mia and Tom swapped, so she had the blue kite. Then she went home from the park. "
    "At home Mia put the blue kite under the bed."
)


def test_every_story_that_is_told_is_right() -> None:
    for number in range(200):
        verdict = judge(story(7, number, held_out=number % 2 == 0).text)
        assert not verdict.wrong and verdict.ended and verdict.right == verdict.sentences >= 7


def test_a_story_that_breaks_off_is_judged_up_to_its_last_full_stop() -> None:
    ends = [place + 1 for place, letter in enumerate(RIGHT) if letter == "."]
    for end in range(len(RIGHT)):
        verdict = judge(RIGHT[:end])
        assert verdict.sentences == verdict.right == sum(place <= end for place in ends) and not verdict.ended
    assert judge(RIGHT).ended


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("She had", "He had", "the pronoun is She"),
        ("gave her", "gave him", "the pronoun is her"),
        ("so she had", "so he had", "the pronoun is she"),
        ("Now Mia had one", "Now Ada had one", "the hero is Mia"),
        ("gave Tom", "gave Ben", "the friend is Tom"),
        ("met Tom", "met Mia", "that is who went"),
        ("one apple.", "one apples.", "one and apples do not agree"),
        ("four apples", "four apple", "four and apple do not agree"),
        ("four apples", "five apples", "it should be four"),
        ("four apples", "four pears", "it was apples"),
        ("gave Tom two", "gave Tom four", "there were only three apples"),
        ("she had the blue kite", "she had the red kite", "Tom had the blue kite"),
        ("put the blue kite", "put the red ball", "Mia had the blue kite"),
        ("from the park", "from the mill", "it was the park"),
        ("under the bed.", "under the bed. Then she went home from the park.", "the story has ended"),
        ("red ball", "red cloud", "not a sentence of this grammar"),
        ("There she met Tom, who had a blue kite. ", "", "there is no friend yet"),
        ("One day Mia went to the park. ", "", "there is no pronoun yet"),
        ("She had a red ball and three apples. ", "", "nobody had any"),
        ("Then she went home from the park. ", "", "nobody is at home yet"),
    ],
)
def test_what_contradicts_is_wrong_and_says_why(right: str, wrong: str, said: str) -> None:
    assert right in RIGHT
    verdict = judge(RIGHT.replace(right, wrong, 1))
    assert said in verdict.wrong[0]


@pytest.mark.parametrize("text", ["", "One day Mia", "...", "\n", "x" * 10_000 + "." * 100])
def test_what_is_no_story_is_not_grammatical(text: str) -> None:
    assert judge(text).wrong or not judge(text).sentences
