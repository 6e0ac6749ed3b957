# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that the shot benchmark gives every figure, and that the recipes' detector meets its bars on the corpus."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of, module_of
from tests.support.shot_films import corpus


@pytest.mark.slow
def test_few_films_give_every_figure_of_every_detector():
    shots = module_of("shots")
    films = list(corpus(101, 2, 10))
    figures = shots.accuracy(films) | shots.speed(films, 1)
    for name in (*shots.PEERS, *shots.OURS):
        assert all(0 <= figures[f"{name}.{column}"] <= 1 for column in shots.COLUMNS)
    assert figures["adaptive_speed_ratio"] > 0 and figures["union_speed_ratio"] > 0


@pytest.mark.soak
def test_union_meets_its_bars_on_the_whole_corpus(tmp_path: Path):
    figures = figures_of("shots", "--rounds", "1", folder=tmp_path)
    assert figures["union.hard_f1"] >= figures["pyscenedetect_adaptive.hard_f1"]
    assert figures["union.fade_recall"] >= 0.9
    assert figures["union.flash_false_positives"] <= 0.05
