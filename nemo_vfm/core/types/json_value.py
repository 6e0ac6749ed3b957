"""Names the types of unchecked JSON, whose checked values have their own, and refuses what is not JSON in Python's."""

import math
from collections import Counter
from typing import Any, NoReturn

Json = Any


def no_json_number(name: str) -> NoReturn:
    """For `parse_constant`: Python reads NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{name} is not a JSON number")


def finite_number(digits: str) -> float:
    """For `parse_float`: 1e999 would be infinite."""
    return found if math.isfinite(found := float(digits)) else no_json_number(digits)


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `object_pairs_hook`: of a key that stands twice Python keeps the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"it has {twice[:80]!r} twice")
    return found
