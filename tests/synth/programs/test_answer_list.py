"""Tests that lists are read as models write them, and that prose is none."""

import pytest

from nemo_vfm.synth.programs.list_questions import items_of


@pytest.mark.parametrize("answer", [
    "1. red\n2. green tea\n3. blue",
    "Sure! Here is a list:\n\n1) red\n2) green tea\n3) blue\n\nDo you want more?",
    "- red\n* **green tea**\n• 'blue'",
    '```json\n["red", "green tea", "blue"]\n```',
    "a) red\nb) green tea\nc) blue\n",
    "  (1) red\n  (2) “green tea”\n  (3) blue,",
    "1. red\n2. Red\n3. green tea\n4. blue\n5. black",
])  # fmt: skip
def test_a_list_is_read_in_any_of_its_forms(answer: str) -> None:
    assert items_of(answer, 3) == ["red", "green tea", "blue"]


@pytest.mark.parametrize("answer", ["", "I cannot help with that.", "[1, 2]", "[" * 100_000, "1.5 million people", "…"])
def test_what_is_no_list_has_no_items(answer: str) -> None:
    assert items_of(answer, 9) == []


def test_items_are_bounded() -> None:
    assert len(items_of("\n".join(f"{n}. item {n}" for n in range(500)), 7)) == 7
    assert len(items_of(f"- {'x' * 100_000}", 7)[0]) == 2000
