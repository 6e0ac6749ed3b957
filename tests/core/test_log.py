"""Tests that untrusted texts, such as names of files, control no terminal from a log line, and which ranks speak."""

import io
import os
import re
import subprocess
import sys
from functools import cache

import pytest
from rich.console import Console

from nemo_vfm.core import log

HOSTILE = "\x1b]0;evil\x07\x1b[31m\u202egnp.mp4\r\x08"


def said(code):
    """What a process with a wide terminal says on standard error."""
    environment = {**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", f"from nemo_vfm.core import log\nHOSTILE = {HOSTILE!r}\n{code}"],
        env=environment, capture_output=True, check=False,
    )  # fmt: skip
    return done.stderr.decode()


def test_what_steers_a_terminal_is_taken_out_of_messages():
    text = said("log.warn(f'failed: {HOSTILE}')")
    assert "failed: ?]0;evil??[31m?gnp.mp4" in text
    assert not {"\x1b", "\x07", "\u202e", "\x08", "\r"} & set(text)


@pytest.mark.parametrize(("rank", "heard"), [("0", 1), ("3", 0)])
def test_of_several_ranks_the_first_alone_speaks_until_another_is_let(rank, heard, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(log, "console", cache(log.console.__wrapped__))  # as in a process that begins
    log.warn("hello")
    with log.bar("b", 2) as bar:
        bar.advance(2)
    log.speak()
    log.warn("again")
    text = capsys.readouterr().err
    assert [text.count(word) for word in ("hello", "b: 2/2", "again")] == [heard, heard, 1], text


@pytest.mark.parametrize(("level", "status"), [("warning", 0), ("DEBUG", 0), ("loud", 2), ("", 2), ("15", 2)])
def test_the_levels_name_is_one_of_logging_or_the_user_is_told(level, status):
    code = (
        "import sys\nfrom nemo_vfm.core import log\nfrom nemo_vfm.core.errors import UserError\n"
        "try: log.info('quiet'); log.warn('heard')\nexcept UserError as error: sys.exit(f'{error}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "NEMO_VFM_LOG_LEVEL": level})  # fmt: skip
    assert (done.returncode != 0) == (status != 0) and ("quiet" in done.stderr) == (level == "DEBUG")
    assert ("heard" in done.stderr) == (status == 0) and ("expected one of DEBUG, INFO" in done.stderr) == (status != 0)


LONG = (
    f"none of 5 samples in {'deep/' * 20}shards is held out, as is said of a-name_with-hyphens.mp4 and others\n  of two"
)


def shown(monkeypatch, capsys, columns: int | None, width: str = "80") -> list[str]:
    """The lines of a long warning and a long line of progress, on a terminal of so many columns or in a pipe."""
    screen = io.StringIO()
    if columns:
        terminal = Console(file=screen, width=columns, force_terminal=True, color_system=None)
        monkeypatch.setattr(log, "console", lambda: terminal)
    monkeypatch.setenv("NEMO_VFM_LOG_WIDTH", width)
    log.warn(LONG)
    if not columns:
        with log.bar("sampling", 1) as bar:
            bar.advance(1, note="a red square " * 9)
    return (screen.getvalue() or capsys.readouterr().err).splitlines()


@pytest.mark.parametrize("columns", [None, 80, 50])
def test_lines_end_between_words_before_the_last_column_and_go_on_below_their_text(columns, monkeypatch, capsys):
    lines = shown(monkeypatch, capsys, columns)
    assert all(len(line) <= (columns or 80) or len(line.split()) == 1 for line in lines), lines
    assert all(re.match(r"\[..:..:..\] \S| {11} *\S", line) for line in lines), lines
    words = " ".join(lines).split()
    assert words[1 : 2 + len(LONG.split())] == ["WARNING:", *LONG.split()]
    assert columns or "sampling: 1/1, " + "a red square " * 8 in " ".join(words)


def test_a_log_for_programs_has_a_record_a_line(monkeypatch, capsys):
    said = shown(monkeypatch, capsys, None, width="0")
    assert [line[11:] for line in said[:2]] == [f"WARNING: {LONG.splitlines()[0]}", LONG.splitlines()[1]]
    assert f"sampling: 1/1, {'a red square ' * 9}" in said[2] and len(said) == 3


def test_lines_of_a_message_stay():
    assert [line.split()[-1] for line in said("log.info('one\\ntwo')").splitlines()] == ["one", "two"]


def test_a_note_of_a_bar_is_no_markup_and_one_line():
    # "[/x].mp4" is a file in a folder called "["; as markup it stopped the bar with an error.
    for name, shown in (
        ("'[/x].mp4'", "[/x].mp4"),
        ("'[red]a.mp4'", "[red]a.mp4"),
        ("'new\\nline' + HOSTILE", "new?line?"),
    ):
        text = said(f"with log.bar('probe [bold]', 3) as bar:\n    bar.advance(1, note={name})")
        assert "probe [bold]" in text and shown in text and "Error" not in text, text
        assert not {"\x1b", "\x07", "\u202e", "\x08"} & set(text)
