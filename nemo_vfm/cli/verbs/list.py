# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""List the recipes: name, what it is, on which hardware, how long it takes."""

import argparse
import re
import shutil
import sys
import textwrap
from pathlib import Path

_FIELD = re.compile(r"(Hardware|Time|Expected):\s*(.*?)\.?(?=\s+(?:Hardware|Time|Expected):|$)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing but help."""


def run(arguments: argparse.Namespace) -> int:
    """Read the comments on top of every recipe; no recipe is parsed."""
    from nemo_vfm.config.roots import Roots
    from nemo_vfm.core.errors import UserError

    recipes = dict(Roots.standard().all_recipes())
    if not recipes:
        raise UserError("there are no recipes here; a folder `recipes` in the working directory is searched")
    width = max(30, min(shutil.get_terminal_size().columns - 4, 100))
    for name, file in sorted(recipes.items()):
        title, hardware, time = header(file)
        where = ", ".join(part for part in (hardware, time) if part)
        lines = textwrap.wrap(f"{title}{f' [{where}]' if where else ''}", width)
        sys.stdout.write(f"{name}\n" + "".join(f"    {line}\n" for line in lines))
    return 0


def header(file: Path) -> tuple[str, str, str]:
    """First line, hardware and time of the comment block that begins a recipe; licence lines are passed over."""
    text = file.read_text(encoding="utf-8", errors="replace").splitlines()
    comment = [line.lstrip("# ").strip() for line in text[: _length(text)] if "SPDX-" not in line]
    lines = [line for line in comment if line]
    fields = {match[1]: match[2] for line in lines for match in _FIELD.finditer(line)}
    title = next((line for line in lines if not _FIELD.match(line)), "")
    return title, fields.get("Hardware", ""), fields.get("Time", "")


def _length(lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines) if line and not line.startswith("#")), len(lines))
