"""Tests what `show`, `show --defaults` and `show --diff` print of recipes and run folders."""

import subprocess
import sys

import pytest

from nemo_vfm.cli.catalogue.defaults import place_of
from nemo_vfm.cli.main import main
from nemo_vfm.config import build, compose, read_values
from nemo_vfm.core.precision import Precision
from nemo_vfm.models.dit import DiT
from tests.support.recipe_folder import PARTS, ROOT, WIDE

RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
A = WIDE + "count: 3\nrate: 2.5\nnames: [a, b]\nstage: {_target_: '@.Scale', by: 2}\n"
B = WIDE + "count: 4\nrate: 2.5\nflag: true\nnames: [a, c]\nstage: {_target_: '@.Shift'}\n"


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def test_only_what_differs_is_shown_with_both_values_and_their_places(kitchen, capsys):
    kitchen.write("a.yaml", A)
    kitchen.write("b.yaml", B)
    assert shown(capsys, "--diff", "a.yaml", "b.yaml") == (
        "count\n"
        "  - 3                          # a.yaml:2\n"
        "  + 4                          # b.yaml:2\n"
        "flag\n"
        "  + true                       # b.yaml:4\n"
        "names\n"
        "  - [a, b]                     # a.yaml:4\n"
        "  + [a, c]                     # b.yaml:5\n"
        "stage._target_\n"
        "  - tests.support.parts.Scale  # a.yaml:5\n"
        "  + tests.support.parts.Shift  # b.yaml:6\n"
        "stage.by\n"
        "  - 2                          # a.yaml:5\n"
    )


def test_changes_are_made_to_both(kitchen, capsys):
    kitchen.write("a.yaml", A)
    kitchen.write("b.yaml", B)
    text = shown(capsys, "--diff", "a.yaml", "b.yaml", "count=7", "~names", "stage={_target_: x.Y}")
    assert text.splitlines()[0] == "flag" and "count" not in text and "names" not in text


def test_one_recipe_is_compared_with_what_changes_make_of_it(kitchen, capsys):
    kitchen.write("a.yaml", A)
    text = shown(capsys, "--diff", "a.yaml", "count=7")
    assert text == "count\n  - 3  # a.yaml:2\n  + 7  # command line\n"
    assert shown(capsys, "--diff", "a.yaml", "count=3") == "no difference\n"


def test_a_recipe_does_not_differ_from_itself_under_another_name(kitchen, capsys):
    kitchen.write("a.yaml", A + "out: ${run_dir}/x\n")
    kitchen.write("b.yaml", A + "out: ${run_dir}/x\n")
    assert shown(capsys, "--diff", "a.yaml", "b.yaml") == "no difference\n"


def test_run_folders_are_compared(kitchen, capsys):
    kitchen.write("r.yaml", "_target_: '@.Count'\nduration: 2 steps\n")
    assert kitchen.main("run", "r.yaml", "run_dir=one") == 0
    assert kitchen.main("run", "r.yaml", "run_dir=two", "weight=2") == 0
    capsys.readouterr()
    text = shown(capsys, "--diff", "one", "two")
    assert text.splitlines()[0] == "weight" and "# two/recipe.yaml:" in text and "run_dir" not in text
    assert "duration" in shown(capsys, "--diff", "one", "duration=3 steps")
    assert main(["show", "--diff", "one", "recipes"]) == 2


def test_two_sides_are_asked_for(kitchen, capsys):
    kitchen.write("a.yaml", A)
    assert main(["show", "--diff", "a.yaml"]) == 2
    assert "two recipes or run folders" in capsys.readouterr().err
    (kitchen.folder / "empty").mkdir()
    assert main(["show", "--diff", "a.yaml", "empty"]) == 2
    assert "without recipe.yaml" in capsys.readouterr().err


def test_nothing_of_the_environment_is_shown(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    kitchen.write("a.yaml", WIDE + "name: ${env:MY_TOKEN}\n")
    kitchen.write("b.yaml", WIDE + "name: pre-${oc.env:MY_TOKEN}\n")
    for words in (["a.yaml"], ["--defaults", "--trust", PARTS, "a.yaml"], ["--diff", "a.yaml", "b.yaml"]):
        text = shown(capsys, *words)
        # Not even as ***, which the last net would make of it: it never was in the text.
        assert "hunter2" not in text and "***" not in text and "${env:MY_TOKEN}" in text


def test_a_new_key_stands_behind_its_neighbour(kitchen, capsys):
    kitchen.write("a.yaml", WIDE + "name: a\nrate: 1\n")
    kitchen.write("b.yaml", WIDE + "name: b\ncount: 2\nrate: 2\nflag: true\n")
    keys = [line for line in shown(capsys, "--diff", "a.yaml", "b.yaml").splitlines() if not line.startswith(" ")]
    assert keys == ["name", "count", "rate", "flag"]


def test_defaults_of_constructors_are_shown_with_their_line(kitchen, capsys):
    kitchen.write("a.yaml", WIDE + "size: {width: 4}\nstage: {_target_: '@.Scale', by: 2}\nchain: ['???']\n")
    lines = shown(capsys, "--defaults", "--trust", PARTS, "a.yaml").splitlines()
    source = (ROOT / "tests/support/parts.py").read_text().splitlines()
    for value, text in (("  height: 64", "height: int = 64"), ("  mode: exact", "by: float, mode: Literal")):
        line = next(line for line in lines if line.startswith(value))
        number = int(line.rpartition(":")[2])
        assert "# tests/support/parts.py:" in line and text in source[number - 1]
    assert any(line.startswith("count: 1 ") for line in lines) and any(line.startswith("  width: 4 ") for line in lines)


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
@pytest.mark.slow
def test_with_defaults_a_recipe_says_every_value_and_is_the_same(file, kitchen, capsys):
    text = shown(capsys, "--defaults", str(file))
    kitchen.write("whole.yaml", text)
    values = read_values(text, "whole")
    assert len(str(values)) >= len(str(read_values(compose(file).to_yaml(), "plain")))  # equal where all is said
    assert kitchen.main("check", "whole.yaml") == 0
    if "???" not in text:
        assert type(build(compose("whole.yaml"))) is type(build(compose(file)))


def test_defaults_of_what_is_not_trusted_are_left_out_and_said(kitchen, capsys):
    kitchen.write("a.yaml", A)
    assert main(["show", "--defaults", "a.yaml"]) == 0
    told = capsys.readouterr()
    assert "flag" not in told.out and "defaults not shown: tests.support.parts.Wide is not trusted" in told.err


def test_equal_by_default_is_no_difference_where_defaults_are_asked_for(kitchen, capsys):
    kitchen.write("a.yaml", WIDE)
    kitchen.write("b.yaml", WIDE + "count: 1\n")
    assert "count" in shown(capsys, "--diff", "a.yaml", "b.yaml")
    assert shown(capsys, "--diff", "--defaults", "--trust", PARTS, "a.yaml", "b.yaml") == "no difference\n"


def test_the_places_of_classes_dataclasses_and_other_packages():
    from torch.optim import AdamW

    assert place_of(DiT, "depth").place().startswith("nemo_vfm/models/dit.py:")
    assert place_of(Precision, "compute").place().startswith("nemo_vfm/core/precision.py:")
    assert place_of(AdamW, "eps").place().startswith("torch/optim/adamw.py:")
    assert place_of(DiT, "nothing").place() == "default of DiT"


def test_showing_and_comparing_import_no_torch():
    code = (
        "import sys; from nemo_vfm.cli.main import main\n"
        "assert main(['show', 'quickstart']) == 0 == main(['show', '--diff', 'quickstart', 'seed=2'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60).returncode == 0
