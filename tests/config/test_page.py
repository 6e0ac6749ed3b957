"""Tests that the page on recipes shows every message, and only messages that a user gets."""

import re

import pytest

from tests.support.problem_sites import reached, sites
from tests.support.recipe_folder import ROOT, Kitchen
from tests.support.wrong_recipes import ALL, complaint

PAGE = (ROOT / "docs/reference/messages.md").read_text()
#: What no example reaches, and why.
NOT_SHOWN = {
    "cannot read {shown_path": "a disk that fails, or a file that may not be read; seen by test_source.py",
    "is defined as {home}, which needs --trust": "a module of ours that imported a guarded class; seen by test_gate.py",
    "the annotations of": "those of ours can all be resolved; seen by test_hints.py",
    "_refusal(self.call, text)": "what torch refuses without a ValueError; seen by tests/recipes/test_numbers.py",
}


def shown() -> dict[str, str]:
    """Title -> message, from the blocks of the page."""
    found: dict[str, str] = {}
    for block in re.findall(r"^```\n(# .*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^# ", block, flags=re.MULTILINE)[1:]:
            title, _, message = part.partition("\n")
            assert title not in found, f"{title} stands on the page twice"
            found[title] = message.strip("\n")
    return found


@pytest.fixture
def said(kitchen, monkeypatch):
    """What a user is told about the recipe of a title."""

    def tell(title):
        monkeypatch.delenv("NOT_EXPORTED", raising=False)
        for name, value in ALL[title].variables.items():
            monkeypatch.setenv(name, value)
        return complaint(kitchen, ALL[title])

    return tell


@pytest.mark.parametrize("title", ALL)
def test_the_page_shows_what_a_user_gets(said, title):
    assert said(title) == shown()[title]


def test_each_message_on_the_page_has_its_recipe():
    assert shown().keys() == ALL.keys()


@pytest.mark.slow  # every line is traced
def test_the_page_shows_every_message_that_there_is(tmp_path, monkeypatch):
    lines = set()
    for number, (title, wrong) in enumerate(ALL.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        for name, value in wrong.variables.items():
            monkeypatch.setenv(name, value)
        lines |= reached(lambda wrong=wrong, folder=folder: complaint(Kitchen(folder), wrong))
        assert title
    missing = {place: source for place, source in sites().items() if place not in lines}
    unexplained = {k: v for k, v in missing.items() if not any(words in v for words in NOT_SHOWN)}
    assert not unexplained, "\n".join(f"{file}:{line} {source}" for (file, line), source in unexplained.items())
    assert len(missing) == len(NOT_SHOWN), "the list of exceptions holds what is shown by now"


def test_the_search_finds_the_places():
    assert len(sites()) > 90 and {file for file, _ in sites()} >= {
        "recipe_check.py",
        "yaml_source.py",
        "locate.py",
        "compose.py",
    }
