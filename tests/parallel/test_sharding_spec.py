"""Tests that a pattern of a plan names modules at its own depth only."""

from nemo_vfm.parallel.plan.sharding_spec import match_modules

NAMES = ["", "blocks", "blocks.0", "blocks.0.mlp", "blocks.0.mlp.up", "blocks.11.mlp.up", "out"]


def test_a_star_stands_for_one_part_of_a_name():
    assert match_modules("blocks.*.mlp.up", NAMES) == ["blocks.0.mlp.up", "blocks.11.mlp.up"]
    assert match_modules("blocks.*", NAMES) == ["blocks.0"]
    assert match_modules("blocks.*.mlp", NAMES) == ["blocks.0.mlp"]
    assert match_modules("mlp", NAMES) == []
