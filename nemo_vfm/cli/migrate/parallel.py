"""Writes degrees of parallelism and micro-batches of another framework as a plan, where they make one."""

from nemo_vfm.cli.migrate.draft import RecipeDraft
from nemo_vfm.parallel.plan.plan import ParallelPlan

_AXES = ("tensor", "pipeline", "virtual", "context")  # called alike as facts and in a plan
_SHARDED = ("fsdp", "fsdp2", "megatron_fsdp", "distributed_fused_adam")
FACTS = (*_AXES, "sequence", "devices", "nodes", "data_ranks", "replicate", "strategy", "zero", "micro_batch")
_FOLLOWS = "parallel.shard x parallel.replicate sets how many devices share the data"


def parallel(draft: RecipeDraft) -> None:
    """The plan, and recomputing of activations, which belongs to the engine."""
    value = draft.get("recompute")
    if value in (True, "full"):
        draft.change("recompute", "engine.recompute", "blocks", "every block is recomputed in the backward pass")
    else:
        draft.leave("recompute", "recomputation covers whole blocks or nothing: engine.recompute=blocks")
    if not set(FACTS) & draft.facts.keys():
        return
    values = {axis: draft.integer(axis) or 1 for axis in _AXES}
    ranks = _data_ranks(draft, values)
    batch, micro = draft.integer("batch_size"), draft.integer("micro_batch")
    exact = batch is not None and micro is not None and batch % (ranks * micro) == 0
    pieces = batch // (ranks * micro) if exact and batch and micro else values["pipeline"]
    shard = _shard(draft, ranks)
    shares = {"replicate": ranks // shard, "shard": shard}
    sequence = draft.get("sequence") is True and values["tensor"] > 1
    try:
        ParallelPlan(sequence=sequence, microbatches=pieces, tensor=values["tensor"], pipeline=values["pipeline"],
                     virtual=values["virtual"], context=values["context"],
                     shard=shares["shard"], replicate=shares["replicate"])  # fmt: skip
    except ValueError as error:
        for fact in FACTS:
            draft.leave(fact, f"these degrees do not fit together: {error}")
        return
    draft.put("parallel._target_", "nemo_vfm.parallel.plan.plan.ParallelPlan")
    for axis in _AXES:
        draft.carry_or_leave(axis, f"parallel.{axis}", draft.integer(axis), "leave the key out for none")
    if sequence or draft.get("sequence") is False:
        draft.carry("sequence", "parallel.sequence", sequence)
    else:
        draft.leave("sequence", "tokens are split over the tensor-parallel devices, and there is only one")
    for axis, count in shares.items():
        if count > 1:
            draft.put(f"parallel.{axis}", count)
    where = "parallel.shard" if shares["shard"] > 1 else "parallel.replicate"
    for fact in ("devices", "nodes", "data_ranks", "replicate", "strategy", "zero"):
        if ranks > 1 and draft.get(fact) not in (None, False):
            draft.agree(fact, where, f"{ranks} groups of devices, each with its own samples")
            draft.origins.setdefault(where, fact)
        else:
            draft.leave(fact, _FOLLOWS)
    _put_pieces(draft, pieces, ranks)


def _data_ranks(draft: RecipeDraft, degrees: dict[str, int]) -> int:
    """Ranks with samples of their own: as said, or what the other axes leave of all devices; 1 where nobody says."""
    if data_ranks := draft.integer("data_ranks"):
        return data_ranks
    devices, nodes = draft.integer("devices"), draft.integer("nodes")
    world = (devices or 0) * (nodes or 1)
    inner = degrees["tensor"] * degrees["pipeline"] * degrees["context"]
    return world // inner if world and world % inner == 0 else draft.integer("replicate") or 1


def _shard(draft: RecipeDraft, ranks: int) -> int:
    """Of these, how many share the weights: a part where copies are said, all with FSDP or ZeRO, else none."""
    copies = draft.integer("replicate")
    if copies and ranks % copies == 0 and draft.get("zero") is not False:
        return ranks // copies
    named = (str(draft.get(fact)).rpartition(".")[2].lower() for fact in ("strategy", "optimizer"))
    shared = draft.get("zero") is True or any(name in _SHARDED for name in named) or "data_ranks" in draft.facts
    return ranks if shared else 1


def _put_pieces(draft: RecipeDraft, pieces: int, ranks: int) -> None:
    batch, micro = draft.integer("batch_size"), draft.integer("micro_batch")
    if batch and micro and pieces * micro * ranks == batch:
        counted = "one data rank" if ranks == 1 else f"{ranks} data ranks"
        why = f"a batch of {batch} over {counted}, {micro} at a time"
        draft.change("micro_batch", "parallel.microbatches", pieces, why)
        return
    if pieces > 1:
        draft.put("parallel.microbatches", pieces, "a pipeline needs at least one for each stage")
    draft.leave("micro_batch", "it does not divide the batch over the data ranks: parallel.microbatches")
