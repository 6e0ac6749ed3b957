# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Misleading values, paths, includes and characters in; a place and a sentence out, nothing outside the run folder.

Attacks 5, 6, 7, 9 and 10 wherever a value can stand.
"""

import hashlib
import re

import pytest

from nemo_vfm.config import RecipeError, build, check, compose
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
    "twice": ("{a: 1, a: 2}", "given twice"),
    "twice, quoted": ("{a: 1, 'a': 2}", "given twice"),
    "unknown alias": ("*nowhere", "refers to nothing"),
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
        inside = len(value) if words in ("merge keys", "given twice") else 0
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
    "count",
    "rate",
    "flag",
    "pair",
    "names",
    "weights",
    "duration",
    "size",
    "stage",
    "stages",
    "chain",
    "optimizer",
    "make",
    "loose",
    "seed",
    "_target_",
]


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


def tree_below(folder):
    """Every file with a hash of its bytes, links as links."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


RUN_DIRS = [
    "../out",
    "a/../../out",
    "<outside>/out",
    "~/out",
    "~root/out",
    "~nobody-of-that-name/out",
    "/etc/nemo_vfm_out",
    "x" * 5000,
    "x/" * 2000 + "y",
    '"a\\0b"',
    "${env:PARTS_OUT}",
    "link/../../out",
    "//out",
    "a/b\\n/../../../out",
]


@pytest.mark.parametrize("run_dir", RUN_DIRS, ids=[text[:30] for text in RUN_DIRS])
def test_a_recipe_cannot_lead_its_run_out_of_the_working_directory(tmp_path, monkeypatch, run_dir):
    from tests.support.recipe_folder import Kitchen

    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir(), outside.mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.setenv("PARTS_OUT", str(outside / "out"))
    monkeypatch.setenv("HOME", str(outside))
    before = tree_below(outside)
    kitchen = Kitchen(inside)
    kitchen.write(
        "r.yaml", f"_target_: @.Count\nduration: 1 steps\nrun_dir: {run_dir.replace('<outside>', str(outside))}\n"
    )
    assert kitchen.main("run", "r.yaml") == 2
    assert tree_below(outside) == before and set(tree_below(tmp_path)) == {"inside", "inside/r.yaml", "outside"}


def test_the_user_may_lead_it_anywhere(kitchen, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "out"
    kitchen.write("r.yaml", "_target_: @.Count\nduration: 1 steps\n")
    assert kitchen.main("run", "r.yaml", f"run_dir={elsewhere}") == 0 and (elsewhere / "recipe.yaml").is_file()
    assert compose(elsewhere / "recipe.yaml").run_dir == elsewhere, "what a run folder holds may be run again"


def test_a_folder_that_is_a_link_writes_where_the_user_pointed_it_and_nowhere_else(kitchen, tmp_path_factory):
    target = tmp_path_factory.mktemp("target")
    (kitchen.folder / "out").symlink_to(target)
    kitchen.write("r.yaml", "_target_: @.Count\nduration: 1 steps\nrun_dir: out\n")
    before = tree_below(target.parent)
    status = kitchen.main("run", "r.yaml")
    changed = set(tree_below(target.parent)) - set(before)
    assert status in (0, 2) and all(path.startswith(target.name) for path in changed)


@pytest.mark.parametrize(
    "name", ["..", "../x", "/x", "~", "~/x", "a/b", ".", "", "x" * 5000, '"a\\0b"', "a b", "-x", "_replaced"]
)
def test_a_step_has_a_folder_of_its_own_below_the_run_or_none(kitchen, name):
    key = name if name.startswith('"') else f"'{name}'"
    kitchen.write(
        "r.yaml",
        "_target_: nemo_vfm.workflow.Workflow\nrun_dir: out\n"
        f"steps:\n  ? {key}\n  : {{_target_: '@.Count', duration: 1 steps}}\n",
    )
    kitchen.main("run", "r.yaml")
    assert {path.split("/")[0] for path in tree_below(kitchen.folder)} <= {"out", "r.yaml"}


@pytest.mark.parametrize("value, words", [("~/x", "does not know ~"), ("x" * 5000, "at most 4096"), ('"a\\0"', "NUL")])
def test_a_path_that_cannot_be_meant_is_refused(kitchen, value, words):
    with pytest.raises(RecipeError, match=words):
        build(kitchen.compose(f"{WIDE}out: {value}"), TRUST)


class TestIncludes:
    """Attack 9."""

    def test_a_chain_of_a_thousand_recipes_is_refused(self, kitchen):
        for number in range(1000):
            kitchen.write(f"r{number}.yaml", f"defaults: [{{steps.a: 'recipe:r{number + 1}.yaml'}}]\n")
        with pytest.raises(RecipeError, match="deep"):
            kitchen.compose("defaults: [{steps.a: 'recipe:r0.yaml'}]")

    def test_includes_that_double_are_refused(self, kitchen):
        for number in range(30):
            kitchen.write(f"conf/a/n{number}.yaml", f"defaults: [{{a: n{number + 1}}}, {{b: n{number + 1}}}]\nx: 1\n")
            kitchen.write(f"conf/b/n{number}.yaml", f"defaults: [{{a: n{number + 1}}}, {{b: n{number + 1}}}]\nx: 1\n")
        with pytest.raises(RecipeError, match=r"more than 20 deep|values together"):
            kitchen.compose("defaults: [{a: n0}]")

    def test_wide_includes_are_refused(self, kitchen):
        for letter, below in zip("abcd", "bcde", strict=True):
            kitchen.write(
                f"conf/{letter}/x.yaml",
                "defaults: [" + ", ".join(f"{{{below}.s{n}.{below}: x}}" for n in range(200)) + "]\n",
            )
        kitchen.write("conf/e/x.yaml", "y: 1\n")
        with pytest.raises(RecipeError, match="values together"):
            kitchen.compose("defaults: [{a: x}]")

    @pytest.mark.parametrize(
        "name",
        [
            "https://x.org/r.yaml",
            "http://127.0.0.1/r",
            "file:///etc/passwd",
            "s3://b/r.yaml",
            "/dev/zero",
            "/dev/stdin",
            "fifo",
            ".",
            "",
            "x" * 300,
            "x" * 5000,
            "a\\0b",
            "~/r.yaml",
            "//x.org/r.yaml",
            "-r.yaml",
            "recipe:recipe:r.yaml",
            "evil.py",
        ],
    )
    def test_what_is_no_file_of_the_users_is_refused_at_its_place(self, kitchen, name):
        import os

        os.mkfifo(kitchen.folder / "fifo")
        for text in (f'steps:\n  a: "recipe:{name}"\n', f'defaults: [{{steps.a: "recipe:{name}"}}]\n'):
            with pytest.raises(RecipeError) as error:
                kitchen.compose(text)
            assert re.match(r"recipe.yaml:[12]:\d+", str(error.value)) and len(str(error.value)) < 2000

    @pytest.mark.parametrize(
        "slot", ["/", "/etc", "..", ".", "a/../..", "a b", "~", "*", "stage.", ".stage", "a" * 5000]
    )
    def test_a_slot_never_searches_the_disk(self, kitchen, slot):
        for text in (f"defaults: [{{? '{slot}' : x}}]", f"{WIDE}stages:\n  ? '{slot}'\n  : 3\n"):
            try:
                said = kitchen.problems(text)
            except RecipeError as error:
                said = str(error)
            assert len(said) < 2000 and "passwd" not in said

    def test_a_name_that_is_joined_ten_thousand_times_is_no_slot(self, kitchen):
        kitchen.write("conf/stage/x.yaml", "y: 1\n")
        with pytest.raises(RecipeError, match=r"not a slot|simple key|not valid YAML"):
            kitchen.compose("defaults:\n  - {" + "a." * 60 + "stage: x}\n")
        with pytest.raises(RecipeError, match="not an address"):
            kitchen.compose(WIDE, "a." * 10_000 + "b=1")


class TestDepth:
    """Attack 4 by other means than the reader's: each would end in a RecursionError."""

    DEEP = "{a: " * 45 + "<x>" + "}" * 45

    def refused(self, kitchen, text, *changes):
        with pytest.raises(RecipeError, match="50 deep"):
            composed = kitchen.compose(text, *changes)
            if problems := check(composed, TRUST):
                raise RecipeError(problems)

    def test_aliases_that_nest(self, kitchen):
        lines = [f"x{n}: &a{n} " + self.DEEP.replace("<x>", f"*a{n - 1}" if n else "1") for n in range(60)]
        self.refused(kitchen, "\n".join(lines))

    def test_interpolations_that_nest(self, kitchen):
        lines = [f"x{n}: " + self.DEEP.replace("<x>", f"'${{x{n + 1}}}'" if n < 25 else "1") for n in range(26)]
        self.refused(kitchen, "\n".join(lines))

    def test_recipes_that_nest(self, kitchen):
        slot = ".".join("a" * 40)
        for number in range(15):
            kitchen.write(f"r{number}.yaml", f"defaults: [{{steps.{slot}: 'recipe:r{number + 1}.yaml'}}]\n")
        kitchen.write("r15.yaml", "x: 1\n")
        self.refused(kitchen, "defaults: [{steps.a: 'recipe:r0.yaml'}]")

    def test_a_value_of_the_command_line(self, kitchen):
        self.refused(kitchen, WIDE, "name=" + "[" * 60 + "]" * 60)


class TestCharacters:
    """Attack 10."""

    @pytest.mark.parametrize(
        "key", ["cоunt", "ｃount", "count\u200b", "co\u00adunt", "ⅽount", "\u202ecount", "count\u0301"]
    )
    def test_a_key_that_only_looks_right_is_refused(self, kitchen, key):
        with pytest.raises(RecipeError, match=r"not plain ASCII|invisible character"):
            kitchen.compose(f"{WIDE}{key}: 3")
        with pytest.raises(RecipeError, match="not an address"):
            kitchen.compose(WIDE, f"{key}=3")

    @pytest.mark.parametrize(
        "sign",
        [
            "\u200b",
            "\u200e",
            "\u202e",
            "\u2066",
            "\ufeff",
            "\u00ad",
            "\u061c",
            "\u3164",
            "\u2028",
            "\U000e0041",
            "\x1b",
            "\x7f",
            "\x9b",
            "\ud800",
        ],
    )
    def test_what_hides_or_reorders_text_is_refused_at_its_place(self, kitchen, sign):
        file = kitchen.write("r.yaml", "_target_: x\n")
        file.write_bytes(f"_target_: x\nname: a{sign}b\n".encode("utf-8", "surrogatepass"))
        with pytest.raises(RecipeError) as error:
            compose(file)
        assert str(error.value).startswith("r.yaml:2:8") or "UTF-8" in str(error.value)
        assert sign not in str(error.value)

    @pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b""])
    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
    def test_a_byte_order_mark_and_line_ends_of_other_systems_are_taken(self, kitchen, head, end):
        file = kitchen.write("r.yaml", "")
        file.write_bytes(head + end.join([b"_target_: tests.support.parts.Wide", b"count: 3", b"name: x", b""]))
        assert build(compose(file), TRUST).name == "x"

    @pytest.mark.parametrize("coding", ["utf-16", "utf-32", "latin-1", "cp037"])
    def test_another_coding_is_refused(self, kitchen, coding):
        file = kitchen.write("r.yaml", "")
        file.write_bytes("_target_: é\n".encode(coding))
        with pytest.raises(RecipeError, match=r"UTF-8|invisible|mapping"):
            compose(file)

    def test_no_message_can_steer_the_terminal(self, kitchen):
        said = kitchen.problems(WIDE + 'count: "\\e[2J\\u202e\\u009b31m\\u2028x"\nnames: "a\\n\\n\\nb"')
        assert all(line.isprintable() for line in said.splitlines()) and len(said.splitlines()) == 6
