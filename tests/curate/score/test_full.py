"""Tests that the stages and rules named full give a table with every column they promise."""

import re

import pyarrow.parquet as pq
import pytest

from nemo_vfm.cli.main import main
from tests.support.films import pan, write_film
from tests.support.repository import ROOT


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    (folder / "in").mkdir()
    write_film(folder / "in" / "a.mp4", pan(3, 24, 3))
    words = [f"source.path={folder / 'in'}", f"run_dir={folder / 'run'}", "stages=full", "rules=full"]
    assert main(["run", str(ROOT / "recipes/curation/clips.yaml"), *words]) == 0
    return pq.read_table(folder / "run" / "scores.parquet")


def test_every_rule_can_be_applied_and_an_honest_film_is_kept(table):
    assert table["decision"].to_pylist() == ["kept"]
    assert table["motion.from"].to_pylist() == ["vectors"] and table["camera"].to_pylist() == ["pan left"]


def test_the_page_on_scores_names_every_column_that_the_full_stages_give(table):
    page = (ROOT / "docs/reference/scores.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_.]+(?:\.\*)?)`", page))
    known = named | {name.removesuffix(".*") + part for name in named for part in (".mean", ".min", ".p10")}
    measured = set(table.column_names[table.column_names.index("motion") :])
    assert measured - known == set()
