"""Tests that any text gives a tree or an error message, and that we read back what we write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.config import RecipeError, SourceText
from nemo_vfm.config.emit import to_yaml, with_places
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.overrides import parse_override
from nemo_vfm.config.recipe_errors import Mark
from nemo_vfm.config.tree import Map, Scalar, Seq, to_plain
from nemo_vfm.config.yaml_source import parse

MARK = Mark(SourceText("t", ()))
WORDS = st.sampled_from(
    [
        "a",
        "- ",
        ": ",
        "\n",
        "  ",
        "[",
        "]",
        "{",
        "}",
        "&x ",
        "*x",
        "!",
        "|",
        ">",
        "'",
        '"',
        "#",
        "?",
        "${a}",
        "${",
        "<<",
        "---",
        "...",
        "1e5",
        "010",
        ".nan",
        "\t",
        "\u202e",
        "é",
        "\0",
        "\ufeff",
        "%",
    ]
)
TEXTS = st.one_of(st.lists(WORDS, max_size=40).map("".join), st.text(max_size=80))
KEYS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=8).filter(
    lambda key: "${" not in key
)
STRINGS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    st.sampled_from(
        [
            "yes",
            "010",
            "1e5",
            ".inf",
            "null",
            "",
            " x",
            "x ",
            "a: b",
            "- a",
            "#c",
            "*a",
            "{",
            "...",
            "---",
            "a,b",
            "${a.b}/c",
            "~",
            "~/x",
            "x:",
            "1_000",
        ]
    ),
)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**15), 10**15), STRINGS, st.floats(allow_nan=False, allow_infinity=False)
)
TREES = st.dictionaries(
    KEYS,
    st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)),
    max_size=4,
)


def node(value):
    """Plain values as a marked tree."""
    if isinstance(value, dict):
        return Map({key: node(below) for key, below in value.items()}, MARK)
    if isinstance(value, list):
        return Seq(tuple(map(node, value)), MARK)
    return Scalar(value, MARK)


def read_anything(text):
    try:
        tree = parse(text, "t")
        if isinstance(tree, Map):
            resolve(tree)
            parse(to_yaml(tree), "again")
    except RecipeError as error:
        assert error.problems[0].render()
    try:
        parse_override(text)
    except RecipeError as error:
        assert error.problems[0].render()


def comes_back(tree):
    root = node(tree)
    for written in (
        to_yaml(root),
        with_places(root),
        with_places(root, 80),
        with_places(root, 10),
    ):  # a place is a comment
        assert not tree or to_plain(parse(written, "again")) == tree, "only an empty file is refused"


def test_every_character_but_nul_and_halves_of_one_reads_back():
    characters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    comes_back(
        {f"from_{first}": "".join(characters[first : first + 4096]) for first in range(0, len(characters), 4096)}
    )


@pytest.mark.parametrize("character", ["\ufffe", "\uffff"])
def test_a_character_that_yaml_has_not_is_named_where_it_stands(character):
    with pytest.raises(RecipeError, match=r"U\+FFF[EF] is not allowed here") as told:
        parse(f"a: 1\nb: x{character}", "t")
    assert "t:2:5" in told.value.problems[0].render()


test_any_text_is_read_or_refused = settings(max_examples=60)(given(TEXTS)(read_anything))
test_what_is_written_reads_back = settings(max_examples=60)(given(TREES)(comes_back))
test_any_text_is_read_or_refused_soak = pytest.mark.soak(settings(max_examples=2000)(given(TEXTS)(read_anything)))
test_what_is_written_reads_back_soak = pytest.mark.soak(settings(max_examples=2000)(given(TREES)(comes_back)))
