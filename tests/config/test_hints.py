"""Tests which annotations say nothing about what fits them."""

import inspect
from typing import Any, TypeVar

import pytest

from nemo_vfm.config.hints import is_open, signature


@pytest.mark.parametrize("hint", [Any, object, inspect.Parameter.empty, TypeVar("T")])
def test_annotations_that_say_nothing_are_open(hint):
    assert is_open(hint)


@pytest.mark.parametrize("hint", [int, str | None, list[Any], None, type])
def test_all_others_are_not(hint):
    assert not is_open(hint)


def test_an_annotation_of_ours_that_cannot_be_resolved_is_no_annotation_that_is_missing():
    def absent(width: "Absent") -> None: ...  # noqa: F821

    assert is_open(signature(absent).arguments["width"].hint)
    absent.__module__ = "nemo_vfm.somewhere"
    signature.cache_clear()
    with pytest.raises(TypeError, match=r"the annotations of .*absent cannot be resolved: name 'Absent'"):
        signature(absent)
