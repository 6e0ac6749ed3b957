"""Tests that the page on recipes shows every message, and only messages that a user gets."""

import ast
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.support.recipe_folder import ROOT, Kitchen
from tests.support.repository import python_files
from tests.support.wrong_recipes import ALL, complaint

PAGE = (ROOT / "docs/reference/messages.md").read_text()
#: Calls that make a message for the user.
MAKERS = {"fail", "_fail", "_say", "_refusal", "Problem", "NotLocated", "BadValue", "TypeError"}
#: What no example reaches, and why.
NOT_SHOWN = {
    "cannot read {shown_path": "a disk that fails, or a file that may not be read; seen by test_source.py",
    "is defined as {home}, which needs --trust": "a module of ours that imported a guarded class; seen by test_gate.py",
    "the annotations of": "those of ours can all be resolved; seen by test_hints.py",
    "_refusal(self.call, text)": "what torch refuses without a ValueError; seen by tests/recipes/test_numbers.py",
}


def sites() -> dict[tuple[str, int], str]:
    """(file, first line) -> the source of each call that makes a problem."""
    found = {}
    for path in python_files("nemo_vfm/config"):
        if path.name == "dict_config.py":  # no recipe's text reaches it; see test_dict_config.py
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and MAKERS & {getattr(node.func, "attr", ""), getattr(node.func, "id", "")}:
                found[path.name, node.lineno] = (ast.get_source_segment(text, node) or "").splitlines()[0]
    return found


def reached(action: Callable[[], object]) -> set[tuple[str, int]]:
    """(file, line) of every line of nemo_vfm/config that a call runs."""
    lines, config = set[tuple[str, int]](), str(ROOT / "nemo_vfm/config")

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(config):
            return None
        if event == "line":
            lines.add((frame.f_code.co_filename.rpartition("/")[2], frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines


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
