# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Show a composed recipe: every value with the file and line it comes from behind it."""

import argparse
import sys

from nemo_vfm.cli.arguments import add_recipe_arguments, composed_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe."""
    add_recipe_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print it; values of the environment stay names."""
    sys.stdout.write(composed_recipe(arguments).show())
    return 0
