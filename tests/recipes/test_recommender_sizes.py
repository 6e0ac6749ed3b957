# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that MLPerf's recipe trains tables of MLPerf's sizes, in which its ids were hashed."""

import yaml

from nemo_vfm.config import compose
from tests.support.repository import ROOT


def test_the_recipes_rows_are_those_of_the_ingredient():
    steps = yaml.safe_load(compose(ROOT / "recipes/recommendation/dcnv2_mlperf.yaml").to_yaml())["steps"]
    assert (
        steps["train"]["model"]["rows"] == yaml.safe_load((ROOT / "conf/model/dcnv2_mlperf.yaml").read_text())["rows"]
    )
