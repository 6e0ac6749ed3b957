"""Decides whether a sample is held out of training, with the same answer for every reader."""

from nemo_vfm.core.log import warn_once
from nemo_vfm.core.seed import derive
from nemo_vfm.data.shards.shard_index import Entry


def is_held_out(entry: Entry, fraction: float) -> bool:
    """By clip, not by sample: windows of one clip show the same, so they must not fall on both sides."""
    return fraction > 0 and derive(0, "held out", str(entry.index.get("clip", entry.key))) < fraction * 2**63


def warn_that_none_is_held_out() -> None:
    """Said by data that were asked to hold samples out, and by who wants to measure them; one of both is enough."""
    warn_once("no sample is held out, so there is no validation loss; raise data.val_fraction to get one")
