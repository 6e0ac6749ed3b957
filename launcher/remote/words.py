"""Adds the options of `submit --ssh`, and returns a submission's arguments without them."""

import argparse
import os
import re

from nemo_vfm.core.errors import UserError

#: No host may be read as an option of ssh, nor hold what a shell would replace.
_HOST = re.compile(r"([A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]{0,250}", re.ASCII)
#: Stands unquoted in the command, so that ~ is the home folder there.
_PYTHON = re.compile(r"~?[\w./+][\w./+-]{0,1000}", re.ASCII)
PYTHON = "NEMO_VFM_SSH_PYTHON"
_LISTS = ("conf", "overlay", "trust", "allow", "allow_host")
_VALUES = ("parts", "rank_silence", "rank_timeout", "profile", "profile_ranks", "profile_seconds")
_FLAGS = ("no_paths", "no_code", "dry_run", "print_script")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--ssh and what belongs to it."""
    parser.add_argument("--ssh", metavar="HOST", help="run this on a login node; the working tree is copied there")
    parser.add_argument(
        "--ssh-folder", metavar="DIR", help="target folder, below your home there (default: vfm-launch/NAME)"
    )
    parser.add_argument("--ssh-python", metavar="PYTHON",
                        help=f"the Python there that has nemo_vfm, such as ~/venv/bin/python (default: {PYTHON}, "
                             "else python3)"
                        )  # fmt: skip


def host(arguments: argparse.Namespace) -> str | None:
    """The host; None where the submission is made here."""
    name: str | None = arguments.ssh
    if name is None:
        if arguments.ssh_folder is not None or arguments.ssh_python is not None:
            raise UserError("--ssh-folder and --ssh-python are for --ssh HOST; add it, or leave them out")
        return None
    if not _HOST.fullmatch(str(name)):  # of `--ssh=--` argparse makes a list
        raise UserError(f"--ssh takes the name of a host as ssh knows it, with or without user@, got {name!r}")
    return name


def python(arguments: argparse.Namespace) -> str:
    """The Python there."""
    found: str = arguments.ssh_python or os.environ.get(PYTHON) or "python3"
    if not _PYTHON.fullmatch(found):
        raise UserError(f"--ssh-python (or {PYTHON}) is a program or its path, without spaces, got {found!r}")
    return found


def words(arguments: argparse.Namespace) -> list[str]:
    """The words of `submit` that say the same, without those of --ssh."""
    given = vars(arguments)
    found = [given["recipe"], *given["overrides"]]
    found += [f"{_option(name)}={value}" for name in _LISTS for value in given[name]]
    found += [f"{_option(name)}={given[name]}" for name in _VALUES if given[name] not in (None, 0)]
    found += [_option(name) for name in _FLAGS if given[name]]
    return [*found, "--sweep", *given["sweep"]] if given["sweep"] else found


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
