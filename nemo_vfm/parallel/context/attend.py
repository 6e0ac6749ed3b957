"""Computes the attention of this rank's tokens over every rank's tokens.

Self-attention only: keys of another sequence, such as text, are short and whole on every rank, so nothing is exchanged.
Shape letters: B batch, H heads, K heads of keys and values, S tokens of this rank, D head dimension.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.collectives import Team, everyone
from nemo_vfm.parallel.context.kernel import Kernel
from nemo_vfm.parallel.context.kernel_choice import choose_kernel
from nemo_vfm.parallel.context.key_exchange import AttentionCall, attend_gathered, ring
from nemo_vfm.parallel.context.scheme import Scheme
from nemo_vfm.parallel.context.tiles import checked_segments, local_spans
from nemo_vfm.parallel.context.ulysses import to_heads, to_tokens


def attend(
    q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, *, group: ProcessGroup | None, scheme: Scheme, causal: bool = False,
    segments: Sequence[int] | None = None, kernel: Kernel | None = None,
) -> Tensor:  # fmt: skip
    """Softmax attention scaled by 1/sqrt(D), with exact gradients, each rank's for its own tokens.

    Args:
        group: the ranks that share the sequence, all with equally many tokens in the order of `order.shard`. None
            where this one has all of it.
        scheme: how they exchange what they need.
        causal: whether a query sees only its own and earlier positions. It decides how tokens lie on the ranks, too.
        segments: lengths of consecutive packed samples in the whole sequence, the same on every rank; samples do not
            see each other. None for a single one.
        kernel: what computes on each rank; None for the fastest there is.

    Returns:
        (B, H, S, D), in the dtype of the queries, or autocast's.
    """
    q, k, v = q_BHSD, k_BKSD, v_BKSD
    if torch.is_autocast_enabled(q.device.type):
        # As torch's own attention: fp32 becomes 16 bits, fp64 stays. Before the check: rotations leave q and k in fp32.
        narrow = torch.get_autocast_dtype(q.device.type)
        q, k, v = (x if x.dtype == torch.float64 else x.to(narrow) for x in (q, k, v))
    fits = q.ndim == 4 and k.shape == v.shape and k.shape == (q.shape[0], k.shape[1], *q.shape[2:])
    if not fits or not q.dtype == k.dtype == v.dtype:
        given = ", ".join(f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in (q, k, v))
        raise UserError(
            "attention over split tokens takes queries (batch, heads, tokens, width) with keys and values of as many "
            f"tokens, the same width and one dtype, but got {given}"
        )
    ranks = group.size() if group else 1
    _, ulysses = scheme.degrees(ranks)
    scheme.check_heads(ranks, q.shape[1], k.shape[1])
    lengths = checked_segments(segments, q.shape[2] * ranks)
    kernel = kernel or choose_kernel(q.device, q.dtype, q.shape[-1])
    if group is None or ulysses == 1:
        call = AttentionCall(everyone(group) if group else None, q.shape[2], lengths, causal, kernel)
        return attend_gathered(q, k, v, call) if scheme.kind == "all_gather" and group else ring(q, k, v, call)
    mine, tokens = group.rank(), q.shape[2]
    first = mine - mine % ulysses
    near = Team(group, tuple(range(first, first + ulysses)))
    far = Team(group, tuple(range(mine % ulysses, ranks, ulysses)))
    spans = tuple(local_spans(member, ranks, tokens, causal) for member in near.members)
    q, k, v = to_heads(near, spans, (q, k, v))
    out = ring(q, k, v, AttentionCall(far, tokens * ulysses, lengths, causal, kernel))
    return to_tokens(near, spans, (out,))[0]
