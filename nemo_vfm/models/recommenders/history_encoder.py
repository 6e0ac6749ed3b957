"""Defines a transformer encoder over histories: every item looks at every other, and the mean of all is the result.

Shape letters: R rows, T items of the longest row, D width, H heads, E width of a head.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.bounds import MOST_BLOCKS, MOST_FRAMES, MOST_HEADS, MOST_WIDTH, require_between
from nemo_vfm.core.types.model_cost import Op
from nemo_vfm.models.blocks.layers import MLP
from nemo_vfm.models.recommenders.padded_rows import row_layout
from nemo_vfm.models.recommenders.sample_dropout import DropoutPlaces, SampleDropout
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.sparse.jagged import Jagged


class HistoryEncoder(nn.Module):
    """Pre-norm transformer blocks (Vaswani et al., 1706.03762), with a learned vector for each age of an item.

    Args:
        width: D.
        depth: number of blocks.
        heads: H, which divides D.
        hidden: width inside of a block's perceptron.
        longest: items that are kept of a history, the last ones.
        dropout: after the attention and after the perceptron of each block.

    Raises:
        ValueError: numbers that do not fit together.
    """

    def __init__(self, *, width: int, depth: int, heads: int, hidden: int, longest: int, dropout: float) -> None:
        super().__init__()
        require_between(1, MOST_BLOCKS, depth=depth)
        require_between(1, MOST_HEADS, heads=heads)
        require_between(1, MOST_WIDTH, mlp_hidden=hidden)
        require_between(1, MOST_FRAMES, longest_history=longest)
        if width % heads:
            raise ValueError(f"width {width} is not divisible by {heads} heads; change either")
        self.width, self.hidden, self.longest = width, hidden, longest
        self.age = nn.Parameter(torch.empty(longest, width))
        self.blocks = nn.ModuleList(_Block(width, heads, hidden, dropout, layer) for layer in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, history: Jagged, places: DropoutPlaces) -> Tensor:
        """The mean over each row's items, (R, D); zeros for a row without any."""
        layout = row_layout(history, self.longest)
        mask_RT = layout.mask_RT
        x_RTD = layout.padded(history.values_N) + self.age[layout.age_RT]
        # Softmax over no key at all is not a number; a row without items sees its first padding instead.
        seen_R11T = mask_RT.index_fill(1, torch.zeros(1, dtype=torch.int64, device=mask_RT.device), True)[:, None, None]
        for block in self.blocks:
            x_RTD = block(x_RTD, seen_R11T, places)
        sum_RD = self.norm(x_RTD).masked_fill(~mask_RT[..., None], 0).sum(1)
        mean_RD: Tensor = sum_RD / layout.lengths_R.clamp(min=1)[:, None]
        return mean_RD

    def ops(self, rows: float, items: float) -> list[Op]:
        """For so many rows of together so many items, all of one length; padding is not counted."""
        depth, length = len(self.blocks), min(self.longest, items / max(1.0, rows))
        linear = 2.0 * rows * length * self.width * (4 * self.width + 2 * self.hidden)
        return [
            Op("linear", depth * linear, "history encoder"),
            Op("attention", depth * 4.0 * rows * length**2 * self.width, "history attention"),
        ]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, dropout: float, layer: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.mlp = MLP(width=width, hidden=hidden, bias=True)
        self.attention_dropout = SampleDropout(dropout, f"{layer}/attention")
        self.mlp_dropout = SampleDropout(dropout, f"{layer}/mlp")

    def forward(self, x_RTD: Tensor, seen_R11T: Tensor, places: DropoutPlaces) -> Tensor:
        q, k, v_RTHE = self.qkv(self.attention_norm(x_RTD)).unflatten(2, (3, self.heads, -1)).unbind(2)
        q_RHTE, k_RHTE, v_RHTE = (part.transpose(1, 2) for part in (q, k, v_RTHE))
        looked_RHTE = F.scaled_dot_product_attention(q_RHTE, k_RHTE, v_RHTE, attn_mask=seen_R11T)
        x_RTD = x_RTD + self.attention_dropout(self.out(looked_RHTE.transpose(1, 2).flatten(2)), places)
        update_RTD: Tensor = self.mlp_dropout(self.mlp(self.mlp_norm(x_RTD)), places)
        return x_RTD + update_RTD
