"""Tests that the collector is on again after a block, and quiet at the end of the process."""

import gc
import subprocess
import sys

import pytest

from nemo_vfm.cli.without_gc import without_collection
from tests.support.recipe_folder import ROOT


def test_the_collector_is_as_it_was_also_after_an_error():
    assert gc.isenabled()
    with pytest.raises(KeyError), without_collection():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_block_made_is_not_walked_where_it_ends():
    started: list[str] = []
    gc.callbacks.append(lambda phase, _: started.append(phase))
    try:
        with without_collection():
            kept = [[one] for one in range(50_000)]
        assert len([[one] for one in range(50)]) < len(kept) and not started
    finally:
        gc.callbacks.pop()


def test_what_is_there_is_not_walked_again_when_python_ends():
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: sys.stdout.write(str(gc.get_freeze_count() > 1000)))\n"
        "from nemo_vfm.cli.without_gc import without_collection\n"
        "with without_collection(): pass\n"
        "assert gc.get_freeze_count() == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True", done.stderr
