"""Estimates the seconds of each exchange of one block for a model, a layout and links, before any overlap.

Groups follow the order of ranks: tensor closest, then context (of ring_ulysses the heads' part closest), then shard,
replicate, pipeline. Bytes of attention over context ranks come from `parallel/context/scheme.py`.
"""

from dataclasses import dataclass

from nemo_vfm.parallel.context.scheme import AttentionSizes, Scheme, backward_bytes, forward_bytes
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.model_work import ModelWork
from nemo_vfm.perf.network import Network, RankGroup

GRADIENT_BYTES = 4  # gradients are summed in fp32, whatever the arithmetic, see `parallel/apply/apply_parallelism.py`


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of a forward and of a backward pass."""

    forward: float = 0.0
    backward: float = 0.0


def activation_bytes(work: ModelWork, plan: ParallelPlan, rows: int, itemsize: int) -> float:
    """Of the tokens that a tensor group holds together, between two blocks."""
    return rows * work.tokens / plan.context * work.width * itemsize


def tensor_s(work: ModelWork, plan: ParallelPlan, network: Network, rows: int, itemsize: int) -> Passes:
    """Gathered and scattered tokens around the split linears, or with whole tokens their sums."""
    group, whole = RankGroup(plan.tensor), activation_bytes(work, plan, rows, itemsize)
    # Queries, key and value of a group are gathered over its ranks (`parallel/layers/parallel_attention.py`).
    ranks, shared = plan.tensor // work.heads, 0.0
    if ranks > 1:
        width = (1 / work.kv_share + 2) * work.head_dim
        shared = network.gather_s(rows * work.tokens / plan.context * width * itemsize, RankGroup(ranks))
    if plan.sequence:
        each = network.gather_s(whole, group) * (work.gathers + work.scatters) + shared
        return Passes(each, each)
    each = network.reduce_s(whole, group)
    return Passes(each * work.scatters + shared, each * work.gathers + shared)


def context_s(work: ModelWork, plan: ParallelPlan, network: Network, rows: int, itemsize: int) -> tuple[Passes, Passes]:
    """What attention over context ranks costs in a block, under the plan's scheme: (in a ring, the rest).

    In a ring, keys and values are sent while others are attended to. Nothing hides the rest: exchanges of heads, of
    time lines, and gathered keys and values.
    """
    if plan.context == 1:
        return Passes(), Passes()
    over = [attention.over for attention in work.attentions]
    own = activation_bytes(work, plan, rows, itemsize) / (plan.tensor if plan.sequence else 1)
    each = network.exchange_s(own * (plan.context - 1) / plan.context, RankGroup(plan.context, plan.tensor))
    lines = 2 * over.count("lines") * each
    # Of one attention: what goes round in a ring, and the rest.
    kind = "ring" if plan.attention == "all_gather" else plan.attention
    scheme = Scheme(kind=kind, ulysses=plan.ulysses)
    kv_heads = max(1, work.heads // plan.tensor)
    sizes = AttentionSizes(batch=rows, heads=round(work.heads / work.kv_share) // plan.tensor, kv_heads=kv_heads,
                 tokens=work.tokens // plan.context, width=work.head_dim, itemsize=itemsize)  # fmt: skip
    ring, heads = scheme.degrees(plan.context)
    passes, rest = [], []
    for reckon in (forward_bytes, backward_bytes):
        around = reckon(Scheme(), ring, sizes)
        exchanged = reckon(scheme, plan.context, sizes) - around
        rest.append(network.exchange_s(exchanged, RankGroup(heads, plan.tensor)))
        group = RankGroup(ring, plan.tensor * heads)
        if ring == 1:
            passes.append(0.0)
        elif plan.attention == "all_gather":
            passes.append(network.gather_s(around * ring / (ring - 1), group))
        else:  # in ring - 1 turns
            passes.append((ring - 1) * network.send_s(around / (ring - 1), group))
    if plan.attention == "all_gather":
        passes, rest = [0.0, 0.0], [one + other for one, other in zip(passes, rest, strict=True)]
    count = over.count("tokens")
    return Passes(*(count * one for one in passes)), Passes(*(count * one + lines for one in rest))
