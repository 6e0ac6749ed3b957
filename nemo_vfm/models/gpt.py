"""Defines GPT, a decoder-only language model that computes the loss of each next token.

Nemotron-4 (2406.11704), the Llama family, Phi-3, Gemma 3 and Qwen 3's mixtures of experts are this network with other
settings. All have pre-norm, rotary positions on a share of each head, grouped-query attention and no dropout. `forward`
is four parts, so that a pipeline can put them on different devices; the scores of the vocabulary are never gathered.
Shape letters: B batch, S tokens, D width, V vocabulary, E head dimension, N packed documents.
"""

from collections.abc import Mapping
from itertools import product

import torch
from torch import Tensor, nn

from nemo_vfm.core.bounds import MAX_BLOCKS, MAX_HEADS, MAX_VOCAB, MAX_WIDTH, require_between
from nemo_vfm.core.counter_random import normal
from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.core.types.sample_batches import IGNORED
from nemo_vfm.models.blocks.layers import draw_weights
from nemo_vfm.models.blocks.text.decoder import (
    BlockSizes,
    DecoderBlock,
    KeyValues,
    NormKind,
    Rotation,
    TextContext,
    norm_of,
)
from nemo_vfm.models.blocks.text.experts import GATES, Activation, Experts, Routes
from nemo_vfm.models.blocks.text.sliding_window import SlidingWindow
from nemo_vfm.models.blocks.text_rope import TextRope
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.linear_token_losses import linear_token_losses
from nemo_vfm.parallel.layers.parallel_attention import split_causal
from nemo_vfm.parallel.layers.token_layout import gather_tokens
from nemo_vfm.parallel.plan.sharding_spec import ShardingSpec


class GPT(nn.Module):
    """Causal transformer over tokens of text.

    Args:
        vocab: V, how many tokens there are.
        width: D.
        depth: number of blocks.
        heads: attention heads; `head_dim` is width / heads where it is not given.
        mlp_hidden: width between the linears of the perceptron.
        groups: heads of keys and values; heads must be divisible by it. None has one for each head.
        head_dim: E; None takes width / heads.
        activation: squared_relu (Nemotron-4), swiglu (Llama), geglu (Gemma) or gelu.
        norm: layernorm1p (Nemotron-4), rmsnorm (Llama) or rmsnorm1p (Gemma).
        eps: added to the variance in norms.
        rope: rotary positions.
        tied: whether the first and the last matrix are the same.
        qkv_bias: whether queries, keys and values have a bias (Qwen 2).
        qk_norm: whether queries and keys of each head are normalised (Qwen 3).
        post_norm: whether the output of attention and perceptron is normalised before it is added (Gemma).
        query_scalar: scores of attention are divided by its root; None takes E.
        scale_embedding: whether embeddings are multiplied by the root of D (Gemma).
        window: blocks that look only at the nearest tokens; None for none.
        experts: a mixture of experts in place of perceptrons, on one device; None for none.
        init_std: standard deviation of the first weights; those that write to the residual are drawn
            sqrt(2 depth) times smaller.
    """

    def __init__(
        self, *, vocab: int, width: int, depth: int, heads: int, mlp_hidden: int, groups: int | None = None,
        head_dim: int | None = None, activation: Activation = "swiglu", norm: NormKind = "rmsnorm", eps: float = 1e-5,
        rope: TextRope = TextRope(), tied: bool = False, qkv_bias: bool = False,
        qk_norm: bool = False, post_norm: bool = False, query_scalar: int | None = None,
        scale_embedding: bool = False, window: SlidingWindow | None = None, experts: Experts | None = None,
        init_std: float = 0.02,
    ) -> None:  # fmt: skip
        super().__init__()
        groups = heads if groups is None else groups
        require_between(1, MAX_VOCAB, vocab=vocab)
        require_between(1, MAX_WIDTH, width=width, mlp_hidden=mlp_hidden)
        require_between(1, MAX_HEADS, heads=heads, groups=groups, head_dim=head_dim)
        require_between(1, MAX_BLOCKS, depth=depth)
        require_between(0, 1, eps=eps)
        require_between(1, MAX_WIDTH, query_scalar=query_scalar)
        require_between(0, 100, init_std=init_std)
        if head_dim is None and width % heads:
            raise ValueError(f"width {width} is not divisible by {heads} heads; change either, or give head_dim")
        if heads % groups:
            raise ValueError(
                f"{heads} heads cannot share {groups} heads of keys and values (groups): it must divide them"
            )
        head_dim = head_dim or width // heads
        self.vocab, self.width, self.depth, self.heads, self.init_std = vocab, width, depth, heads, init_std
        if experts is not None:
            of_layers = {f"experts.dense_layers.{place}": layer for place, layer in enumerate(experts.dense_layers)}
            require_between(0, depth - 1, **of_layers)
        self.rope, self.rotated = rope, rope.rotary_dim(head_dim)
        self.window, self.windows = window, [None] * depth if window is None else window.of(depth)
        if window is not None and window.rope is not None:
            window.rope.rotary_dim(head_dim)
        self.scale_embedding = scale_embedding
        self.sizes = BlockSizes(width, heads, groups, head_dim, mlp_hidden, activation, norm, eps, qkv_bias, qk_norm,
                           post_norm, query_scalar, experts)  # fmt: skip
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(DecoderBlock(self.sizes, *one) for one in enumerate(self.windows))
        self.norm = norm_of(self.sizes)
        self.head = Linear(width, vocab, bias=False)
        self.tied = tied
        if tied:
            self.head.weight = self.embedding.weight
        draw_weights(self, self.initial_weight, torch.initial_seed())

    def initial_weight(self, name: str, shape: torch.Size, seed: int) -> Tensor:
        if name.endswith("bias"):
            return torch.zeros(shape)
        if name.endswith("norm.weight"):
            of_head = name.endswith(("q_norm.weight", "k_norm.weight"))
            one_p = self.sizes.norm == "rmsnorm1p" or (self.sizes.norm == "layernorm1p" and not of_head)
            return torch.zeros(shape) if one_p else torch.ones(shape)
        to_residual = name.endswith((".out.weight", ".down.weight"))
        std = self.init_std / (2 * self.depth) ** 0.5 if to_residual else self.init_std
        return normal(shape, seed, "init", name).mul_(std)

    def forward(
        self, tokens_BS: Tensor, labels_BS: Tensor | None = None, lengths_N: Tensor | None = None,
        loss_weight_B: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The loss of each token, or without labels the scores of the word after each.

        Args:
            tokens_BS: int64.
            labels_BS: the word after each token; `vocabulary.IGNORED` has no loss. None gives the scores, on ranks that
                have whole texts and the whole vocabulary.
            lengths_N: lengths of the documents that the batch is packed of, row after row, none of them over two rows;
                they do not see each other. None where each row is one document.
            loss_weight_B: what each token of a row counts in the loss that is trained, up to one factor; see
                `linear_token_losses`. None where a task gives tokens of a row different weights.

        Returns:
            (B, S), fp32, in natural units; 0 where there is no loss. Scores are (B, S, V), before softmax.
        """
        context = self.context(tokens_BS, labels_BS, lengths_N)
        x_BSD = self.run_blocks(self.embed(tokens_BS, context), context)
        if labels_BS is None:
            scores: Tensor = self.head(self.norm(x_BSD))
            return scores.view(*tokens_BS.shape, self.vocab)
        return self.output(x_BSD, labels_BS, loss_weight_B, context=context)

    def context(
        self, tokens_BS: Tensor, labels_BS: Tensor | None, lengths_N: Tensor | None = None,
        loss_weight_B: Tensor | None = None,
    ) -> TextContext:  # fmt: skip
        """Inputs shared by all blocks."""
        lengths = None if lengths_N is None else tuple(int(length) for length in lengths_N)
        if lengths is not None and sum(lengths) != tokens_BS.numel():
            raise ValueError(f"documents of {sum(lengths)} tokens in all do not fill a batch of {tokens_BS.numel()}")
        documents, device = lengths or (tokens_BS.shape[1],), tokens_BS.device
        places_1S = torch.cat([torch.arange(length, device=device) for length in documents])[None]
        lengths_1S = torch.cat([torch.full((length,), length, device=device) for length in documents])[None]
        (cos, sin), near = self.rotations(split_causal(places_1S, 1), split_causal(lengths_1S, 1))
        balanced = self.training and self.sizes.experts is not None and self.sizes.experts.balance > 0
        return TextContext(cos, sin, lengths, near=near, routes=Routes() if balanced else None)

    def rotations(self, places_BS: Tensor, lengths_BS: Tensor) -> tuple[Rotation, Rotation | None]:
        """Of blocks without and with a window; None for the latter where they are the same. See `TextRope.table`."""
        near = None if self.window is None else self.window.rope
        return (
            self.rope.table(self.rotated, places_BS, lengths_BS),
            None if near is None else near.table(near.rotary_dim(self.sizes.head_dim), places_BS, lengths_BS),
        )

    def embed_tokens(self, tokens_BS: Tensor) -> Tensor:
        """Tokens as vectors (B, S, D)."""
        x_BSD: Tensor = self.embedding(tokens_BS)
        return x_BSD * x_BSD.new_full((), self.width**0.5) if self.scale_embedding else x_BSD  # rounded, as there

    def embed(self, tokens_BS: Tensor, context: TextContext) -> Tensor:
        """Tokens as vectors (B, S, D), those of this rank; a packed batch is one row."""
        if context.lengths is not None:
            tokens_BS = tokens_BS.reshape(1, -1)
        return self.embed_tokens(split_causal(tokens_BS, 1))

    def run_blocks(self, x_BSD: Tensor, context: TextContext) -> Tensor:
        """The vectors after the blocks that are here."""
        for block in self.blocks:
            x_BSD = block(x_BSD, context)
        return x_BSD

    def output(
        self, x_BSD: Tensor, labels_BS: Tensor, loss_weight_B: Tensor | None = None, *, context: TextContext
    ) -> Tensor:  # fmt: skip
        """Vectors and labels as losses (B, S), all of them on every rank."""
        of_tokens = [labels_BS] if loss_weight_B is None else [labels_BS, loss_weight_B[:, None].expand_as(labels_BS)]
        if context.lengths is not None:
            of_tokens = [one.reshape(1, -1) for one in of_tokens]
        losses = linear_token_losses(self.head, self.norm(x_BSD), *(split_causal(one, 1) for one in of_tokens))
        if context.routes is not None and self.sizes.experts is not None:
            added = self.sizes.experts.balance * context.routes.imbalance()
            losses = losses + added * (of_tokens[0] != IGNORED)  # so their mean grows by as much
        losses = gather_tokens(losses, 1, causal=True)
        return losses.view(labels_BS.shape).clone()  # FSDP wants no view

    def cache(self, begins_B: Tensor, most: int, dtype: torch.dtype) -> KeyValues:
        """Room for the keys and values of a generation."""
        sizes = self.sizes
        return KeyValues(layers=self.depth, begins_B=begins_B, groups=sizes.groups, head_dim=sizes.head_dim,
                         most=most, dtype=dtype)  # fmt: skip

    def scores(self, tokens_BS: Tensor, cache: KeyValues, last: bool = True) -> Tensor:
        """Scores of the next word, (B, V), or with last=False after each token, (B, S, V); on one device."""
        lengths_B1 = (cache.most - cache.begins_B)[:, None]
        (cos, sin), near = self.rotations(cache.places(tokens_BS.shape[1]), lengths_B1)
        x_BSD = self.run_blocks(self.embed_tokens(tokens_BS), TextContext(cos, sin, None, cache, near))
        cache.advance(tokens_BS.shape[1])
        found: Tensor = self.head(self.norm(x_BSD[:, -1] if last else x_BSD))
        return found

    def plan(self) -> ShardingSpec:
        gate = ("blocks.*.mlp.gate",) if self.sizes.activation in GATES else ()
        return ShardingSpec(
            column=("blocks.*.attention.qkv", "blocks.*.mlp.up", *gate, "head"),
            row=("blocks.*.attention.out", "blocks.*.mlp.down"),
            vocabulary=("embedding",),
            per_head=("blocks.*.attention.?_norm",) if self.sizes.qk_norm else (),
            heads=self.sizes.groups,
            query_heads=self.heads,
            window=None if self.window is None else self.window.tokens,
            one_device=self.sizes.experts is not None,
            blocks="blocks",
            recompute=("blocks.*",),
            first=() if self.tied else ("embedding",),
            last=("norm",) if self.tied else ("norm", "head"),
            every=("embedding", "head") if self.tied else (),
        )

    def small_inputs(self) -> dict[str, tuple[int, ...]]:
        """See `HasDummyInputs`: as many tokens as eight context ranks can share."""
        return {"tokens_BS": (1, 32)}

    def ops(self, inputs: Mapping[str, tuple[int, ...]]) -> list[Op]:
        """The matrix products of one forward pass; a multiply and an add count as two, attention is counted whole.

        Hardware that skips the upper half of causal attention does half of it; `perf` knows both conventions. Packed
        documents attend each to itself alone.
        """
        batch, length = inputs["tokens_BS"]
        sizes, tokens = self.sizes, 2.0 * batch * length
        documents = inputs.get("lengths_N", (length,) * batch)
        # Queries times keys where the masked half is counted: all, or twice those in the window less the own.
        pairs = 0
        for one, window in product(documents, self.windows):
            near = min(one, window or one)
            pairs += near**2 + 2 * (one - near) * near - (one - near)
        kept = sizes.head_dim * (sizes.heads + 2 * sizes.groups) + sizes.head_dim * sizes.heads
        linears = 3 if sizes.activation in GATES else 2
        experts, dense, routed = sizes.experts, self.depth, 0
        if experts is not None:
            dense = len(experts.dense_layers)
            routed = (self.depth - dense) * (experts.count + linears * experts.per_token * experts.hidden)
        return [
            Op("linear", self.depth * tokens * self.width * kept, "attention projections"),
            Op("attention", 4.0 * pairs * sizes.heads * sizes.head_dim, "causal attention", causal=True),
            Op("linear", tokens * self.width * (dense * linears * sizes.mlp_hidden + routed), "perceptron"),
            Op("linear", tokens * self.width * self.vocab, "output"),
        ]
