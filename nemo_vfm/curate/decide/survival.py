"""Counts how many clips and seconds survive as each threshold moves (survival.json).

Rules whose columns come from a comparison or a caption are left out: what they drop depends on what the others keep.
"""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_columns import CAPTION_COLUMNS
from nemo_vfm.curate.decide.limit import Limit
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.decide.score_table import Flags, Table

SCHEMA = "nemo_vfm.survival/1"
_POINTS = 64


def survival(table: Table, rules: Mapping[str, Rule], *, compared: Collection[str] = ()) -> Json:
    """What survival.json holds; see docs/how-to/video/decisions.md.

    Args:
        table: all clips.
        rules: in the recipe's order.
        compared: columns of comparisons, whose rules are left out.
    """
    chosen = {
        name: rule
        for name, rule in rules.items()
        if not {use.name for use in rule.uses()} & {*compared, *CAPTION_COLUMNS}
    }
    drops = {name: rule.drops(table) & table.alive for name, rule in chosen.items()}
    broken = np.sum([*drops.values(), np.zeros(len(table), bool)], axis=0)  # how many rules each clip breaks
    decided = np.zeros(len(table), bool)
    found = {}
    for name, rule in chosen.items():
        alone = drops[name] & (broken == 1)
        others = table.alive & (broken - drops[name] == 0)
        found[name] = {
            "rule": rule.text,
            "drops": _amount(table, drops[name]),
            "drops_first": _amount(table, drops[name] & ~decided),
            "drops_alone": _amount(table, alone),
            "curves": [_curve(table, rule, limit, others) for limit in rule.limits(table)],
        }
        decided |= drops[name]
    survive = _amount(table, table.alive & (broken == 0))
    return {"schema": SCHEMA, "in": _amount(table, table.alive), "survive": survive, "rules": found}


def _amount(table: Table, chosen: Flags) -> Json:
    return {"clips": int(chosen.sum()), "seconds": int(table.microseconds[chosen].sum()) / 1e6}


def _curve(table: Table, rule: Rule, limit: Limit, others: Flags) -> Json:
    """What survives all rules with this threshold at each of some places; the other thresholds stay."""
    free = others & rule.passes_without(limit, table)
    values = table.numbers(limit.score)
    known = free & ~np.isnan(values)
    always = free & np.isnan(values) & (table.images if limit.drops_missing else True)
    places = _places(values[known], limit.threshold)
    clips, seconds = _survivors(values[known], table.microseconds[known], places, limit)
    base = _amount(table, always)
    return {
        **limit.to_json(),
        "thresholds": places.tolist(),
        "clips": (clips + base["clips"]).tolist(),
        "seconds": (seconds / 1e6 + base["seconds"]).tolist(),
    }


def _places(values: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """Where the curve is computed: evenly many clips from place to place, and where the threshold stands."""
    spread = np.quantile(values, np.linspace(0, 1, _POINTS)) if len(values) else values
    return np.unique(np.append(spread, threshold))


def _survivors(
    values: NDArray[np.float64], microseconds: NDArray[np.int64], places: NDArray[np.float64], limit: Limit
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.argsort(values)
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(microseconds[order])])
    # Below `cut` lie the values that are lower than the place, and those equal to it where they go the same way.
    side = "right" if limit.inclusive == (limit.op == "<") else "left"
    cut = np.searchsorted(values[order], places, side=side)  # type: ignore[call-overload]
    if limit.op == "<":
        return len(values) - cut, total[-1] - total[cut]
    return cut, total[cut]
