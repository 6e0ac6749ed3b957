"""Tests what verbs print, and their exit statuses."""

import io
import re
import sys

import pytest

from nemo_vfm.config.roots import header
from nemo_vfm.core.program import below_caret
from nemo_vfm.runtime.terminal import Terminal
from tests.support.recipe_folder import WIDE
from tests.support.repository import ROOT


def test_check_prints_all_problems_and_ends_with_two(kitchen, capsys):
    kitchen.write("r.yaml", WIDE + "conut: 1\nrate: x\n")
    assert kitchen.main("check", "r.yaml") == 2
    shown = capsys.readouterr().out
    assert "did you mean count?" in shown and "expected a number" in shown and "r.yaml: 2 problems" in shown


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_long_sentence_goes_on_below_its_caret_and_a_command_stays_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    command, sentence = "pip install " + "'nemo_vfm[text]' " * 5, "it takes " + "one, " * 20 + "two"
    text = f"{command}\n    size: 1\n          ^ {sentence}"
    first, source, *rest = below_caret(text, Screen()).split("\n")
    assert first == command and source == "    size: 1" and rest[0].startswith("          ^ it takes one")
    assert len(rest) > 1 and all(len(line) <= 60 and line[:12].strip() in ("", "^") for line in rest)
    assert " ".join(" ".join(rest).split())[2:] == sentence
    assert below_caret(text, io.StringIO()) == text


def test_a_result_ends_between_words_on_a_terminal_and_is_one_line_elsewhere(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = "7 workflow steps done; colour 0/2, shape 0/2, direction 0/2 (57 s)"
    for stream, count in ((Screen(), 2), (io.StringIO(), 1)):
        monkeypatch.setattr(sys, "stdout", stream)
        Terminal().result(text)
        lines = stream.getvalue().splitlines()
        assert len(lines) == count and " ".join(lines) == text


def test_on_a_terminal_a_long_line_of_a_recipe_is_cut_around_what_its_caret_points_at(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    line = "    " + "data: 1, " * 9 + "shards: '???', " + "batch: 2, " * 9
    shown, caret = below_caret(f"{line}\n{' ' * line.index('shards')}^ give it", Screen()).split("\n")
    assert len(shown) == 60 and shown[caret.index("^") :].startswith("shards: '???'") and len(caret) < 60


def test_check_lists_what_is_missing_and_ends_with_zero(kitchen, capsys):
    kitchen.write("r.yaml", WIDE + "out: ???\n")
    assert kitchen.main("check", "r.yaml") == 0
    shown = capsys.readouterr().out
    assert "you must set this: out=DIR" in shown and "1 value for you to give" in shown
    assert kitchen.main("check", "r.yaml", "out=x") == 0
    assert capsys.readouterr().out == "r.yaml: ok\n"


def test_check_hears_a_constructors_objection_and_writes_nothing(kitchen, capsys):
    kitchen.write("r.yaml", WIDE + "stage: {_target_: '@.Scale', by: 0}\n")
    assert kitchen.main("check", "r.yaml") == 2
    assert "a scale of 0.0 forgets its input" in capsys.readouterr().out
    assert sorted(p.name for p in kitchen.folder.iterdir()) == ["r.yaml"]


@pytest.mark.parametrize("counts", ["one,2,3", "1,one,3", "1,2,one"])
def test_check_of_a_sweep_tells_every_combination_and_ends_with_two_where_one_is_wrong(kitchen, capsys, counts):
    kitchen.write("r.yaml", WIDE)
    assert kitchen.main("check", "r.yaml", "--sweep", f"count={counts}") == 2
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("count=")] == [
        f"count={one}" for one in counts.split(",")
    ]
    assert shown.count("r.yaml: ok") == 2
    assert kitchen.main("check", "r.yaml", "--sweep", f"count={counts}", "--work") == 2
    assert kitchen.main("check", "r.yaml", "--sweep", "count=1,2,3") == 0


def test_check_takes_a_number_of_gpus(kitchen, capsys):
    kitchen.write("r.yaml", WIDE)
    assert kitchen.main("check", "r.yaml", "--gpus", "4096") == 0
    assert "4,096 GPUs: this job has no parallel plan" in capsys.readouterr().out
    assert kitchen.main("check", "r.yaml", "--gpus", "0") == 2


def test_options_and_changes_may_be_mixed(kitchen):
    kitchen.write("mine/stage/scale.yaml", "# mine\n_target_: '@.Scale'\nby: 3\n")
    kitchen.write("r.yaml", WIDE)
    assert kitchen.main("check", "r.yaml", "count=3", "--conf", "mine", "stage=scale", "~stage.by", "stage.by=2") == 0


def test_show_prints_places(kitchen, capsys):
    kitchen.write("r.yaml", WIDE + "count: 3\n")
    assert kitchen.main("show", "r.yaml", "rate=2.5") == 0
    shown = capsys.readouterr().out
    assert "# r.yaml:2" in shown and "# command line" in shown


HEADER = """# SPDX-License-Identifier: Apache-2.0
# Do they fit? Each is compared
# with all others (arXiv 1901.08001).
# Hardware: 2 cores, or one GPU of 24 GB. Time: 0.5 s a clip where nothing
#   is striped, as clips.yaml otherwise. A second sentence.
# Expected: shards/ and a.json, e.g. of tars; see
# docs/a.md. Which models: b.
#   nemo-vfm run recipes/deep/x.yaml a=DIR \\
#     b=Hardware: none
#   ... c=1                    on a cluster
a: 1
"""


def test_list_tells_what_a_recipe_is_and_costs_in_whole_sentences(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    kitchen.write("recipes/deep/x.yaml", HEADER)
    assert kitchen.main("list", "deep") == 0
    told = capsys.readouterr().out.partition("deep/x\n")[2].splitlines()[:4]
    assert told == [
        "    Do they fit?",
        "    hardware: 2 cores, or one GPU of 24 GB",
        "    time: 0.5 s a clip where nothing is striped, as clips.yaml otherwise",
        "    expected: shards/ and a.json, e.g. of tars; see docs/a.md",
    ]


def test_every_recipe_of_ours_is_listed_with_whole_sentences():
    recipes = sorted((ROOT / "recipes").rglob("*.yaml"))
    assert recipes
    for file in recipes:
        found = header(file)
        assert found.hardware and found.time and found.expected, file
        assert re.search(r"[.?!]$", found.title), f"{file}: {found.title}"
        for told in (found.title, found.hardware, found.time, found.expected):
            assert told.count("(") == told.count(")") and "nemo-vfm run" not in told, f"{file}: {told}"


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_list_keeps_to_the_width_of_the_terminal(kitchen, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    kitchen.write("recipes/a.yaml", f"# {'many words ' * 30}\n# Hardware: any.\na: 1\n")
    assert kitchen.main("list") == 0
    short = capsys.readouterr().out.splitlines()
    assert max(map(len, short)) <= columns
    assert kitchen.main("list", "many", "words") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns and max(map(len, lines)) >= min(columns, 104) - 12


def test_list_alone_is_a_screen_of_names_by_group_and_says_how_to_see_more(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    kitchen.write("recipes/deep/x.yaml", HEADER)
    assert kitchen.main("list") == 0
    told = capsys.readouterr().out
    assert "deep (1)\n    deep/x\n" in told and "diffusion/train_small" in told and "`nemo-vfm list GROUP`" in told
    assert "Do they fit?" not in told and len(told.splitlines()) <= 50


def test_list_filters_by_group_name_and_title(kitchen, capsys):
    kitchen.write("recipes/deep/x.yaml", HEADER)
    for words in (["deep/"], ["DEEP", "fit"], ["they fit?"]):
        assert kitchen.main("list", *words) == 0
        told = capsys.readouterr().out
        assert "deep/x\n" in told and "\nquickstart\n" not in told
    assert kitchen.main("list", "deep/", "diffusion") == 2, "every word counts"
    assert "no recipe has 'deep/' and 'diffusion'" in capsys.readouterr().err
    assert kitchen.main("list", "difusion") == 2
    assert "no recipe has 'difusion' in its name or title; did you mean diffusion?" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "a: 1\n", "#\n#   \n", "\n\n# late\n"])
def test_a_recipe_without_a_header_is_listed_all_the_same(tmp_path, text):
    file = tmp_path / "r.yaml"
    file.write_text(text)
    assert not header(file).hardware and not header(file).time


def test_report_writes_the_page_of_a_folder(kitchen, capsys):
    kitchen.write("r.yaml", "_target_: @.Count\nduration: 1 steps\n")
    assert kitchen.main("run", "r.yaml") == 0
    (kitchen.folder / "runs/r/report.html").unlink()
    capsys.readouterr()
    assert kitchen.main("report", "runs/r") == 0
    assert capsys.readouterr().out.strip() == "runs/r/report.html"
    assert (kitchen.folder / "runs/r/report.html").is_file()
    assert kitchen.main("report", "recipes") == 2
