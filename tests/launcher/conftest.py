# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A module of tests in, a real Slurm of two nodes out, where this machine has one."""

from collections.abc import Iterator

import pytest

from tests.support.slurm import Slurm, lacking, slurm


@pytest.fixture(scope="module")
def real_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes of 16 cores, for all tests of a file."""
    if why := lacking():
        pytest.skip(f"tests of the launcher against a real Slurm need one: {why}")
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
