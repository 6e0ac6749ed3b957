"""Tests that the commands on the page of common mistakes answer what it shows, byte for byte."""

import re
import shutil

import pytest

from nemo_vfm.cli.main import main
from tests.support.page import Example, examples, write_files
from tests.support.recipe_folder import ROOT

PAGE = (ROOT / "docs/reference/mistakes.md").read_text()
EXAMPLES = examples(PAGE)


def answers(example: Example, capsys):
    """What each command of an example prints, on both streams, with its exit status."""
    for words, shown in example.commands:
        status = main(words)
        streams = capsys.readouterr()
        yield words, shown, streams.out + streams.err, status


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that holds our recipes and ingredients and nothing else."""
    for name in ("recipes", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("MY_SHARDS", "MY_DURATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.title.partition(".")[0] for example in EXAMPLES])
def test_the_page_shows_what_a_user_sees(checkout, capsys, example):
    write_files(example, checkout)
    for words, shown, said, status in answers(example, capsys):
        assert said == shown, f"nemo-vfm {' '.join(words)}"
        assert status == 2 and "Traceback" not in said


def test_there_are_twenty_and_at_min_half_are_about_real_recipes():
    numbered = [int(example.title.partition(".")[0]) for example in EXAMPLES]
    assert numbered == list(range(1, len(numbered) + 1)) and len(numbered) >= 20
    real = [e for e in EXAMPLES if any("quickstart" in words for words, _ in e.commands)]
    assert len(real) >= len(numbered) / 2


def test_every_mistake_says_what_to_write():
    for section in PAGE.split("\n## ")[1:]:
        after = section.rpartition("```")[2]
        assert re.match(r"\n(Write|Remove|Keep|Add|Export|Indent) ", after), section.splitlines()[0]
