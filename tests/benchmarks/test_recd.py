# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the benchmark of deduplication: its figures are there, and its two sides compute the same."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of


@pytest.mark.soak  # a minute
def test_a_quick_run_stores_less_steps_faster_and_computes_the_same(tmp_path: Path):
    figures = figures_of("recd", "--quick", "--orders", folder=tmp_path)
    assert figures["stored_ratio"] > 2.5 and 1 < figures["stored_over_unique"] < 1.2
    assert figures["wire_ratio"] > 2 and figures["largest_batch_ratio"] > 2
    assert figures["max_difference"] < 1e-4
    rest = {"preprocess_ratio", "train_ratio", "train_over_ceiling", "attention_share"}
    assert rest | {"auc_clustered", "auc_shuffled", "auc_shuffled_by_512"} < figures.keys()
