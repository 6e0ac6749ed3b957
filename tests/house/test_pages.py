"""Tests that the commands that pages and recipes show are commands: recipe, keys, values and options."""

import importlib
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress

import pytest

from launcher.cli import PROGRAM as LAUNCHER
from nemo_vfm.cli.main import PROGRAM, VerbParser
from nemo_vfm.config import Roots, check, trust_list
from nemo_vfm.core.network.permission import NOTHING
from nemo_vfm.runtime.command import composed_recipe
from tests.support.repository import ROOT, python_files, where, yaml_files

#: Pages that show mistakes, old commands, or what was typed on a day.
OTHERS = ("docs/reference/mistakes.md", "docs/reference/messages.md", "docs/log.md", "docs/measurements/")
COMMAND = re.compile(r"\bnemo-vfm (run|check|show|plan|parity) ")
#: What a recipe is refused for that a user has prepared, or that the page is about.
PREPARED = (
    "--allow-host",
    "the endpoints file has no endpoint",
    "looks like a key",
    "the package mine is not installed",
)
KNOWN = {name for name, _ in Roots.standard().all_recipes()}


def shown() -> Iterator[tuple[str, str, list[str]]]:
    """Page, verb and words of every command on a recipe of ours."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *yaml_files("recipes")]
    for page in pages:
        if where(page).startswith(OTHERS) or page.name == "CHANGELOG.md":
            continue
        text = page.read_text(encoding="utf-8")
        for match in COMMAND.finditer(text):
            words = words_of(re.sub(r"\n# *", "\n", text[match.end() :]))
            if any(recipe_of(word) in KNOWN for word in words):
                yield where(page), match[1], words


def words_of(text: str) -> list[str]:
    """A command's words as a shell has them, without a comment or prose behind it."""
    words = [word.rstrip(",;") for word in split(text)]  # of a sentence, or of YAML
    end = next((n for n, one in enumerate(words) if n and not _belongs(one, words[n - 1])), None)
    return words[:end]


def split(text: str) -> list[str]:
    """The words of the command with which a text begins."""
    lines = re.sub(r"\\\n", "", text).splitlines()
    for count in range(1, 8):  # a quoted word may go on
        with suppress(ValueError):
            return shlex.split("\n".join(lines[:count]).partition("`")[0], comments=True)
    return []


def _belongs(word: str, before: str) -> bool:
    return word.startswith(("-", "~")) or "=" in word or recipe_of(word) in KNOWN or before.startswith("--")


def recipe_of(word: str) -> str:
    return word.removeprefix("recipes/").removesuffix(".yaml")


SHOWN = list(shown())


def test_the_commands_are_found():
    assert len(SHOWN) > 150 and any("\n" in word for *_, words in SHOWN for word in words)


@pytest.mark.parametrize(
    ("page", "verb", "words"), SHOWN, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_a_command_on_a_page_is_one(page, verb, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    parser = VerbParser(prog="nemo-vfm")
    importlib.import_module(f"nemo_vfm.cli.verbs.{verb}").add_arguments(parser)
    arguments = parser.parse_intermixed_args(words)
    composed = composed_recipe(arguments)
    if verb == "show":
        return
    problems = check(composed, trust_list(getattr(arguments, "trust", [])), NOTHING)
    wrong = [one for one in problems if one.kind != "missing" and not any(words in one.message for words in PREPARED)]
    assert not wrong, "\n".join(map(str, wrong))


#: Where a line of a block is a command of one of our programs, perhaps after `$ ` or a variable.
TYPED = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )?(nemo-vfm|vfm-launch) ([a-z]+)(?=\s|$)", re.MULTILINE)


def typed() -> Iterator[tuple[str, str, str, list[str]]]:
    """Page, program, verb and words of the commands in the blocks of pages."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if where(page).startswith(OTHERS) or page.name == "CHANGELOG.md":
            continue
        for block in re.findall(r"^```(?:bash|text)?\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            for match in TYPED.finditer(block):
                words = split(re.sub(" {3,}[^#].*", "", block[match.end() :]))  # prose in a second column
                if not {"...", "[OPTION"} & {*words}:  # what is left to the reader
                    yield where(page), match[1], match[2], words


@pytest.mark.parametrize(("page", "program", "verb", "words"), [*typed()])
def test_the_options_of_a_command_on_a_page_are_its_own(page, program, verb, words):
    (PROGRAM if program == "nemo-vfm" else LAUNCHER).verb_parser(verb).parse_intermixed_args(words)


NAMED = {
    name: where(page)
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *yaml_files("recipes")]
    if not where(page).startswith((*OTHERS, "docs/adding.md")) and page.name != "CHANGELOG.md"
    for name in re.findall(r"\b(?:nemo_vfm|launcher)(?:\.[a-z]\w*)+\.[A-Z]\w*", page.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_class_that_a_page_names_stands_where_it_says(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute), NAMED[name]


def test_the_page_of_commands_says_what_each_environment_variable_of_ours_does():
    texts = [path.read_text() for path in python_files("nemo_vfm", "launcher")]
    read = {name for text in texts for name in re.findall(r"[\"'](NEMO_VFM_[A-Z0-9_]+)[\"']", text)}
    read -= {"NEMO_VFM_LAUNCHER"}
    assert len(read) > 4 and "NEMO_VFM_LOG_LEVEL" in PROGRAM.exits
    page = (ROOT / "docs/reference/environment.md").read_text()
    assert read == set(re.findall(r"^\| `(NEMO_VFM_[A-Z0-9_]+)` \|", page, re.MULTILINE))
