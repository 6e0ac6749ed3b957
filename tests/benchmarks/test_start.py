"""Tests that the start benchmark measures every wait, and stops with the message of a command that fails."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of, module_of


def test_a_command_is_timed_and_one_that_fails_ends_the_benchmark():
    start = module_of("start")
    assert 0 < start.seconds(["-m", "nemo_vfm", "--help"], 1) < 10
    with pytest.raises(SystemExit, match="ended with 3"):
        start.seconds(["-c", "raise SystemExit(3)"], 1)


@pytest.mark.soak
def test_every_wait_is_measured(tmp_path: Path):
    figures = figures_of("start", "--quick", folder=tmp_path)
    assert tuple(figures) == ("help_s", "list_s", "show_s", "check_s", "check_over_import_torch", "first_line_s")
    assert figures["help_s"] < 1
