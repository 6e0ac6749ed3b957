"""Tests that values that mislead, loop or are secret are reported with their place (attacks 5 and 6)."""

import pytest

from nemo_vfm.config import RecipeError, build
from tests.support.recipe_folder import PARTS, TRUST, WIDE

#: Attack 5: what YAML 1.1 or Python would take for something else.
MISLEADING = {
    "nan": (".nan", "not a finite number"),
    "NaN": (".NaN", "not a finite number"),
    "inf": (".inf", "not a finite number"),
    "negative inf": ("-.INF", "not a finite number"),
    "positive inf": ("+.Inf", "not a finite number"),
    "too large": ("1e400", "too large for a 64-bit float"),
    "negative, too large": ("-1.5e999999", "too large for a 64-bit float"),
    "octal": ("010", "begins with a zero"),
    "negative octal": ("-007", "begins with a zero"),
    "long integer": ("9" * 401, "characters long"),
    "very long integer": ("1" + "0" * 10_000, "characters long"),
    "long float": ("0." + "1" * 500, "characters long"),
    "tag": ("!!python/name:os.system", "tag"),
    "float tag": ("!!float 1", "tag"),
    "own tag": ("!x 1", "tag"),
    "merge": ("{<<: {a: 1}}", "merge keys"),
    "twice": ("{a: 1, a: 2}", "appears twice"),
    "twice, quoted": ("{a: 1, 'a': 2}", "appears twice"),
    "unknown alias": ("*nowhere", "has no anchor above it"),
}
PLACES = {
    "value": "_target_: @.Wide\nname: <v>\n",
    "below": "_target_: @.Wide\nstage: {_target_: '@.Scale', by: <v> }\n",
    "item": "_target_: @.Wide\nnames: [a, <v> ]\n",
    "step": "_target_: nemo_vfm.workflow.Workflow\nsteps:\n  a:\n    _target_: '@.Wide'\n    rate: <v>\n",
    "factory": "_target_: @.Wide\nmake:\n  _target_: '@.Scale'\n  by: <v>\n",
    "open slot": "_target_: @.Wide\nloose: {_target_: '@.Loose', more: [{x: <v> }]}\n",
    "reserved": "_target_: @.Wide\nseed: <v>\n",
    "defaults": "defaults: [{stage: <v> }]\n_target_: @.Wide\n",
}


@pytest.mark.parametrize("value, words", MISLEADING.values(), ids=MISLEADING)
def test_what_could_be_misread_has_its_line_and_column_everywhere(kitchen, value, words):
    for place, recipe in PLACES.items():
        with pytest.raises(RecipeError) as error:
            kitchen.compose(recipe.replace("<v>", value))
        before = recipe.replace("@", PARTS).partition("<v>")[0]
        problem = error.value.problems[0]
        assert words in problem.message, place
        assert problem.mark.line == before.count("\n") + 1, place
        column = len(before) - before.rfind("\n")
        inside = len(value) if words in ("merge keys", "appears twice") else 0
        assert column <= problem.mark.column <= column + inside, place
        assert f"recipe.yaml:{problem.mark.line}:{problem.mark.column}" in str(error.value)


@pytest.mark.parametrize("value", ["yes", "no", "on", "off", "Yes", "NO", "True", "FALSE", "y", "n", "norway"])
def test_only_true_and_false_are_booleans(kitchen, value):
    said = kitchen.problems(f"{WIDE}flag: {value}")
    assert said.startswith("recipe.yaml:2:7  flag") and "expected true or false" in said
    assert kitchen.build(f"{WIDE}name: {value}").name == value


@pytest.mark.parametrize(
    "value", ["0x1F", "0o17", "0b1", "1:30", "12:30:45", "1__0", "1e", "1.2.3", "2026-11-21", "1,5"]
)
def test_what_other_readers_compute_is_text_here(kitchen, value):
    assert kitchen.build(f"{WIDE}name: {value}").name == value
    assert "expected a number, got the text" in kitchen.problems(f"{WIDE}rate: {value}")


LOOPS = [
    "name: ${out}\nout: ${name}",
    "size: ${stages}\nstages: ${size}",
    "stage: {_target_: '${stage._target_}'}",
    "names: ['${names.0}']",
    "name: a${name}",
    "run_dir: x/${run_dir}",
    "seed: ${seed}",
]


@pytest.mark.parametrize("text", LOOPS)
def test_a_loop_is_drawn(kitchen, text):
    try:
        said = kitchen.problems(WIDE + text)
        composed = kitchen.compose(WIDE + text)
        _ = composed.seed, composed.run_dir
    except RecipeError as error:
        said = said + str(error)
    assert "refers to itself" in said and "recipe.yaml:2" in said


FORMS = ["${env:AWS_SECRET_ACCESS_KEY}", "x-${env:AWS_SECRET_ACCESS_KEY}-y", "${oc.env:AWS_SECRET_ACCESS_KEY}"]
SLOTS = [
    "count", "rate", "flag", "pair", "names", "weights", "duration", "size", "stage", "stages", "chain",
    "optimizer", "make", "loose", "seed", "_target_",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("slot", SLOTS)
def test_a_secret_in_the_wrong_slot_is_not_echoed(kitchen, monkeypatch, form, slot):
    for secret in ("hunter22-abcdef", "1.5", "yes", "exat", "12 parsecs", "os.system", "a\nb: ${x}"):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        head = "" if slot == "_target_" else WIDE
        with pytest.raises(RecipeError) as error:
            composed = kitchen.compose(f"{head}{slot}: {form}\n")
            assert secret not in composed.show() + composed.to_yaml().replace("yes:", "")
            _ = composed.seed
            build(composed, TRUST)
        assert secret not in str(error.value) and "remove the quotes" not in str(error.value)


@pytest.mark.parametrize(
    "secret", ["hunter22-abcdef", "with 'quotes' \"and\" \\slashes\\", "tab\tand\nline", "ключ-12345"]
)
def test_a_constructor_cannot_tell_a_secret_not_even_a_part_of_it(kitchen, monkeypatch, secret):
    monkeypatch.setenv("PARTS_SECRET", secret)
    for how in ("echo", "key"):
        with pytest.raises(RecipeError) as error:
            kitchen.build(f"_target_: @.Trips\nhow: {how}\ntext: ${{env:PARTS_SECRET}}")
        assert secret not in str(error.value) and secret[:7] not in str(error.value)
        assert secret[-7:] not in str(error.value) and error.value.__cause__ is None


def test_the_name_of_a_file_cannot_steer_the_terminal(kitchen):
    kitchen.write("a\x1b[31m\nb.yaml", "_target_: @.Train\n")
    said = kitchen.problems('_target_: nemo_vfm.workflow.Workflow\nsteps: {a: "recipe:a\\e[31m\\nb.yaml"}\n')
    assert "has no Train" in said and "\x1b" not in said and "a?[31m b.yaml:1:1" in said
