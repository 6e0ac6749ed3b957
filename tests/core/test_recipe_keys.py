"""Tests which settings a finished step does not depend on."""

import pytest

from nemo_vfm.core.recipe_keys import is_inert

HARMLESS = ["num_workers", "pace", "budget", "keep_last", "log_every", "save_every_steps", "keep_clips"]


@pytest.mark.parametrize("key", HARMLESS)
def test_what_only_says_how_or_how_often_is_inert(key):
    assert is_inert(key)


@pytest.mark.parametrize("key", ["seed", "batch_size", "num_workers_a_rank", "keep", "my_save_every"])
def test_all_else_decides_what_a_step_holds(key):
    assert not is_inert(key)
