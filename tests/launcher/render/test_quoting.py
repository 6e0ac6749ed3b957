"""Tests that a real bash and a real sbatch read quoted texts, harmless and hostile, unchanged."""

import random
import subprocess
from pathlib import Path

import pytest

from launcher.render.quoting import directive, in_bind, quote, remark, variable
from tests.support.slurm import Slurm

HOSTILE = (
    "$(touch canary)", "`touch canary`", "; touch canary;", "x\ntouch canary\n", "' ; touch canary; '",
    "&& touch canary", "a=b", '" ; touch canary; "', "$IFS", "%j %x %%", "ünï ✓", "-leading", "--help", "back\\", "*",
    "~", "!!", "a#b", "{a,b}", "\u202etxt.exe", "\u2028", "a\tb", "\x1b[2J", "${HOME:0:1}", " edges ", "",
)  # fmt: skip
#: What an option of Slurm's may hold: no line breaks and nothing that is invisible.
PRINTABLE = tuple(text for text in HOSTILE if text.isprintable() and text.strip() == text and text)


def through_bash(texts: list[str], folder: Path) -> list[str]:
    """What a program gets as its words."""
    script = folder / "script.sh"
    script.write_text(f"printf '%s\\0' {' '.join(map(quote, texts))}\n", encoding="utf-8")
    done = subprocess.run(["bash", script], cwd=folder, capture_output=True, check=True, timeout=60)
    return done.stdout.decode().split("\0")[:-1]


def test_hostile_words_reach_a_program_byte_by_byte_and_nothing_of_them_is_run(tmp_path: Path):
    assert through_bash(list(HOSTILE), tmp_path) == list(HOSTILE)
    assert not (tmp_path / "canary").exists()


def test_two_thousand_words_of_dangerous_letters_reach_a_program_byte_by_byte(tmp_path: Path):
    draw = random.Random(0)
    letters = "$`'\"\\ \n\t;&|<>(){}[]*?!#~=%-aé✓\x01\x7f\u202e"
    texts = ["".join(draw.choices(letters, k=draw.randrange(12))) for _ in range(2000)]
    assert through_bash(texts, tmp_path) == texts


@pytest.mark.parametrize("text", HOSTILE)
def test_a_quoted_word_is_one_visible_line(text):
    assert quote(text).isprintable()


@pytest.mark.parametrize("text", ["a\0b", "\udcff"])
def test_what_no_program_can_be_given_is_refused(text):
    with pytest.raises(ValueError, match=r"zero byte|UTF-8"):
        quote(text)


def test_sbatch_reads_hostile_options_as_they_are(real_slurm: Slurm, tmp_path: Path):
    for number, text in enumerate(PRINTABLE):
        script = tmp_path / f"{number}.sh"
        lines = ["#!/bin/bash", f"{directive('job-name', text)}  # a reason", directive("comment", text), "sleep 60"]
        script.write_text("\n".join(lines), encoding="utf-8")
        job = real_slurm.say("sbatch", "--parsable", "--hold", f"--chdir={tmp_path}", str(script))
        said = [real_slurm.say("squeue", "-h", "-j", job, "-o", field) for field in ("%j", "%k")]
        real_slurm.say("scancel", job)
        assert said == [text, text]
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("text", [text for text in HOSTILE if not text.isprintable()])
def test_a_line_break_cannot_begin_an_option_of_its_own(text):
    with pytest.raises(ValueError, match=r"account: .* contains a line break or a control character"):
        directive("account", text)


@pytest.mark.parametrize("name", ["uid=0 --wrap", "Name", "--uid", "a\nb", ""])
def test_only_names_of_options_are_options(name):
    with pytest.raises(ValueError, match="is not a Slurm option"):
        directive(name, "x")


@pytest.mark.parametrize("name", ["lower_case", "_x", "A1"])
def test_names_of_variables_stay_as_they_are(name):
    assert variable(name) == name


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "A=B", "", "A\nB", "Ä", "A;touch canary"])
def test_what_bash_has_no_name_for_is_refused(name):
    with pytest.raises(ValueError, match="is not a variable name"):
        variable(name)


@pytest.mark.parametrize("path", ["data", "/a:/etc", "/a,/b", "/a\nb", '/a"b'])
def test_a_path_that_would_mount_something_else_is_refused(path):
    with pytest.raises(ValueError, match="cannot be mounted"):
        in_bind(path)


def test_a_comment_stays_one_line():
    assert remark("a\nrm -rf /\u2028b") == "a?rm -rf /?b"
