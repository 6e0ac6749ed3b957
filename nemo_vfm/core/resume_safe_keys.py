"""Tells whether a recipe's key changes only how the work is done, not what it produces."""

import re

_INERT = re.compile(
    r"num_workers|pace|budget|every_steps|keep_clips|keep_(?:last|best|every_steps)"
    r"|(?:log|save|checkpoint|preview|validate)_every(?:_\w+)?"
)


def is_inert(key: str) -> bool:
    """Whether a key's value has no influence on what a finished step holds."""
    return _INERT.fullmatch(key) is not None
