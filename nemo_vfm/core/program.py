"""Runs the verb that a command line names and returns its exit status. Heavy imports wait until a verb runs."""

import argparse
import ast
import difflib
import os
import pkgutil
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.preemption import INTERRUPTED, PreemptedNow, idle_error
from nemo_vfm.core.secret import concealing_streams, register_arguments

_CARET = re.compile(r" *\^ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command with verbs."""

    name: str  #: as it is typed
    about: str  #: what it is for, in a line
    folder: Path  #: of the verbs' files, each with `add_arguments(parser)` and `run(arguments) -> int`
    package: str  #: the same folder's dotted name
    exits: str  #: what its exit statuses mean
    version: str  #: what --version prints
    parser: type[argparse.ArgumentParser] = argparse.ArgumentParser  #: reads the words behind a verb

    def main(self, words: Sequence[str] | None = None) -> int:
        """Run one verb of the words that the user typed behind the name; None takes the process's."""
        words = sys.argv[1:] if words is None else list(words)
        known = [file.stem for file in self._files()]
        if not words or words[0] in ("-h", "--help"):
            lines = "\n".join(f"  {name:<{max(map(len, known))}}  {line}" for name, line in self.verbs().items())
            more = f"`{self.name} VERB --help` says more.\n{self.exits}"
            sys.stdout.write(f"usage: {self.name} VERB ...\n\n{self.about}\n\n{lines}\n\n{more}\n")
            return 0 if words else 2
        if words[0] == "--version":
            sys.stdout.write(f"{self.version}\n")
            return 0
        if words[0] not in known:
            close = difflib.get_close_matches(words[0], known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            sys.stderr.write(f"{self.name} has no verb {words[0]!r}; {hint}\n")
            return 2
        register_arguments(words)
        with concealing_streams():
            try:
                status: int = self._module(words[0]).run(self.verb_parser(words[0]).parse_intermixed_args(words[1:]))
                return status
            except (Exception, KeyboardInterrupt, PreemptedNow) as error:
                return _status_of(error)

    def verbs(self) -> dict[str, str]:
        """Every verb with the first line of its file's docstring; the files are read, not imported."""
        return {file.stem: (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition("\n")[0]
                for file in self._files()}  # fmt: skip

    def _files(self) -> list[Path]:
        files = sorted(file for file in self.folder.glob("*.py") if file.stem != "__init__")
        assert files, f"no verbs in {self.folder}"
        return files

    def verb_parser(self, verb: str) -> argparse.ArgumentParser:
        """What reads a verb's words; its help is the docstring of the verb's file, with its examples at the end."""
        module = self._module(verb)
        about, _, examples = (module.__doc__ or "").partition("\nExamples:\n")
        epilog = f"examples:\n{examples}\n{self.exits}" if examples else self.exits
        parser = self.parser(prog=f"{self.name} {verb}", description=about, epilog=epilog,
                             formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
        module.add_arguments(parser)
        return parser

    def _module(self, verb: str) -> Any:
        return pkgutil.resolve_name(f"{self.package}.{verb}")  # one of the files that were found


def _status_of(error: BaseException) -> int:
    """Say what a verb raised, in a sentence where it is known; the exit status."""
    match error:
        case NemoVfmError():
            sys.stderr.write(f"{below_caret(_scrub(error), sys.stderr)}\n")
            return error.exit_code
        case PreemptedNow():  # one more signal, while the answer to the first was under way
            sys.stderr.write(f"{idle_error(error)}\n")
            return idle_error(error).exit_code
        case KeyboardInterrupt():
            sys.stderr.write("interrupted\n")
            return INTERRUPTED
        case BrokenPipeError():  # `nemo-vfm show ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case OSError() if error.filename and error.strerror:  # a file, a folder or a disk, and no fault of ours
            sys.stderr.write(f"cannot use {_scrub(error.filename)}: {error.strerror}\n")
            return UserError.exit_code
    traceback.print_exc()
    sys.stderr.write(f"unexpected: {type(error).__name__}: {_scrub(error)}\n")
    return 1


def below_caret(text: str, stream: TextIO) -> str:
    """A text for a stream; on a terminal it goes through `narrow_lines`."""
    return "\n".join(narrow_lines(text.split("\n"), shutil.get_terminal_size().columns)) if stream.isatty() else text


def narrow_lines(lines: Sequence[str], width: int) -> Iterator[str]:
    """Lines in which a sentence behind a caret goes on below itself, and the line it points into is cut around it.

    Others may be commands, which are copied: they stay whole.
    """
    for above, line, below in zip(["", *lines[:-1]], lines, [*lines[1:], ""], strict=True):
        if caret := _CARET.match(line):
            sentence = line[_cut(above, caret.end(), width) :]
            indent = " " * min(sentence.index("^") + 2, width // 2)
            yield from textwrap.wrap(sentence, width, subsequent_indent=indent, break_long_words=False,
                                     break_on_hyphens=False)  # fmt: skip
        elif pointing := _CARET.match(below):
            yield line[_cut(line, pointing.end(), width) :][:width]
        else:
            yield line


def _cut(line: str, caret: int, width: int) -> int:
    """The columns to leave out before a line so that its caret stands in the first third."""
    return max(0, caret - width // 3) if len(line) > width else 0


def _scrub(error: object) -> str:
    """Its words, which may hold the name of a file, and that is anybody's."""
    from nemo_vfm.core.log import scrub

    return scrub(str(error))
