# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The words of `vfm-launch` in, an exit status out; nothing heavy is imported before a verb runs."""

import argparse
import ast
import difflib
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.secret import concealing_streams, register_arguments

VERBS = Path(__file__).parent / "verbs"
INTERRUPTED = 130
_EXITS = (
    "exit status: 0 ok, 1 something unexpected, 2 you can fix it, 130 interrupted; on cluster=local that of the run"
)


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        words: what the user typed behind `vfm-launch`; taken from the process if None.
    """
    words = sys.argv[1:] if words is None else list(words)
    known = verbs()
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(_help(known))
        return 0 if words else 2
    if words[0] not in known:
        close = difflib.get_close_matches(words[0], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        sys.stderr.write(f"vfm-launch has no verb {words[0]!r}; {hint}\n")
        return 2
    register_arguments(words)
    with concealing_streams():
        return _guarded(words[0], words[1:])


def verbs() -> dict[str, str]:
    """Every verb with the first line of its file's docstring; the files are read, not imported."""
    files = sorted(file for file in VERBS.glob("*.py") if file.stem != "__init__")
    assert files, f"no verbs in {VERBS}"
    return {file.stem: (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition("\n")[0] for file in files}


def _help(known: dict[str, str]) -> str:
    width = max(map(len, known))
    lines = "\n".join(f"  {name:<{width}}  {line}" for name, line in known.items())
    return (
        f"usage: vfm-launch VERB ...\n\nFrom a recipe to a cluster's queue, and back.\n\n{lines}\n\n"
        f"`vfm-launch VERB --help` says more.\n{_EXITS}\n"
    )


def _guarded(name: str, words: Sequence[str]) -> int:
    """Run a verb and turn what it raises into a sentence and a status."""
    from nemo_vfm.core.log import plain

    try:
        return _dispatch(name, words)
    except NemoVfmError as error:
        sys.stderr.write(f"{plain(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # `vfm-launch list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        traceback.print_exc()
        sys.stderr.write(f"unexpected: {type(error).__name__}: {plain(str(error))}\n")
        return 1


def _dispatch(name: str, words: Sequence[str]) -> int:
    module = pkgutil.resolve_name(f"launcher.verbs.{name}")  # name is one of the files that were found
    parser = argparse.ArgumentParser(prog=f"vfm-launch {name}", description=module.__doc__, epilog=_EXITS,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    module.add_arguments(parser)
    status: int = module.run(parser.parse_intermixed_args(words))
    return status
