"""Tests that a pattern of a plan names modules at its own depth only."""

from nemo_vfm.parallel.plan.sharding_spec import matching

NAMES = ["", "blocks", "blocks.0", "blocks.0.mlp", "blocks.0.mlp.up", "blocks.11.mlp.up", "out"]


def test_a_star_stands_for_one_part_of_a_name():
    assert matching("blocks.*.mlp.up", NAMES) == ["blocks.0.mlp.up", "blocks.11.mlp.up"]
    assert matching("blocks.*", NAMES) == ["blocks.0"]
    assert matching("blocks.*.mlp", NAMES) == ["blocks.0.mlp"]
    assert matching("mlp", NAMES) == []
