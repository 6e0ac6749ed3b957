"""Tests that a thought is split from what is said, whole or in pieces, and that a text without one stays as it is."""

from random import Random

import pytest

from nemo_vfm.core.network.thought import ThoughtSplit, split_thought


@pytest.mark.parametrize(("text", "thought", "said"), [
    ("<think>\nHm. 1. this\n</think>\n\n1. Alpha\n", "Hm. 1. this", "1. Alpha\n"),
    ("\n <think>a</think>b", "a", "b"), ("<think>\n\n</think>\n\nb", "", "b"), ("<think></think>", "", ""),
    ("Hm.\n</think>\nb", "Hm.", "b"), ("</think>b", "", "b"), ("<think>a <think> b</think>c", "a <think> b", "c"),
    ("<think>cut off", "cut off", ""), ("<think>cut </thi", "cut </thi", ""), ("<think>", "", ""),
    ("<think>a</think>\n<think>b</think> c", "ab", "c"), ("<think>a</think> \n", "a", ""),
    ("  b <think>a</think> c\n", "", "  b <think>a</think> c\n"), ("<thinking>a", "", "<thinking>a"),
    ("Hm.</think>\n\nb", "Hm.", "b"), ("End it with `</think>`, please.", "", "End it with `</think>`, please."),
    ("", "", ""), (" <thi", "", " <thi"), ("<think>a</think>b</think>c", "a", "b</think>c"),
])  # fmt: skip
def test_a_thought_at_the_beginning_is_not_part_of_what_is_said(text: str, thought: str, said: str) -> None:
    assert split_thought(text) == (thought, said)


def test_pieces_of_any_length_give_what_the_whole_gives() -> None:
    draw = Random(0)
    parts = ("<think>", "</think>", "<", "think", ">", "/", " ", "\n", "a", "bc", "</", "<th")
    for _ in range(2000):
        text, is_open = "".join(draw.choices(parts, k=draw.randint(0, 9))), draw.random() < 0.3
        found = []
        for most in (len(text) + 1, 1, 3):
            split, at, pairs = ThoughtSplit(is_open=is_open), 0, []
            while at < len(text):
                size = draw.randint(1, most)
                pairs.append(split.add(text[at : at + size]))
                at += size
            pairs.append(split.flush())
            found.append(tuple("".join(side) for side in zip(*pairs, strict=True)))
        assert found[0] == found[1] == found[2], repr(text)
