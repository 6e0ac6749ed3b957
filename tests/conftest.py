# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A test run in, the seconds each folder took out: every room pays for its own minutes. Also settings for all tests."""

from collections import Counter

import pytest
from hypothesis import settings

# A loaded machine is no reason to fail: what a case asserts is its result, never its time.
settings.register_profile("ours", deadline=None)
settings.load_profile("ours")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print seconds and number of tests by folder, the slowest first."""
    seconds: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = report.nodeid.partition("::")[0].rpartition("/")[0]
                seconds[folder] += report.duration
                numbers[folder] += report.when == "call"
    terminalreporter.section("seconds by folder")
    for folder, spent_s in seconds.most_common():
        terminalreporter.write_line(f"{spent_s:8.1f} s  {numbers[folder]:5d} tests  {folder}")
