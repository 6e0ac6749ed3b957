"""Tests that too many includes, deep nesting and hidden characters are refused at their place (attacks 9 and 10)."""

import os
import re

import pytest

from nemo_vfm.config import RecipeError, build, check, compose
from tests.support.recipe_folder import TRUST, WIDE


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
        with pytest.raises(RecipeError, match=r"more than 20 levels deep|values together"):
            kitchen.compose("defaults: [{a: n0}]")

    def test_wide_includes_are_refused(self, kitchen):
        for letter, below in zip("abcd", "bcde", strict=True):
            kitchen.write(
                f"conf/{letter}/x.yaml",
                "defaults: [" + ", ".join(f"{{{below}.s{n}.{below}: x}}" for n in range(200)) + "]\n",
            )
        kitchen.write("conf/e/x.yaml", "y: 1\n")
        with pytest.raises(RecipeError, match="values in all"):
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
        with pytest.raises(RecipeError, match="50 levels deep"):
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
