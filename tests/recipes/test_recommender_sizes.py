"""Tests that MLPerf's recipe trains tables of MLPerf's sizes, in which its ids were hashed."""

import yaml

from nemo_vfm.config import compose
from tests.support.repository import ROOT

INGREDIENT = "conf/model/dcnv2_mlperf.yaml"


def test_the_recipes_rows_are_those_of_the_ingredient():
    recipe, ingredient = (ROOT / name for name in ("recipes/recommendation/dcnv2_mlperf.yaml", INGREDIENT))
    model = yaml.safe_load(compose(recipe).to_yaml())["steps"]["train"]["model"]
    assert model["rows"] == yaml.safe_load(ingredient.read_text())["rows"]
