# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests which annotations say nothing about what fits them."""

import inspect
from typing import Any, TypeVar

import pytest

from nemo_vfm.config.hints import is_open


@pytest.mark.parametrize("hint", [Any, object, inspect.Parameter.empty, TypeVar("T")])
def test_annotations_that_say_nothing_are_open(hint):
    assert is_open(hint)


@pytest.mark.parametrize("hint", [int, str | None, list[Any], None, type])
def test_all_others_are_not(hint):
    assert not is_open(hint)
