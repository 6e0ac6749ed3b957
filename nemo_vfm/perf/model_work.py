"""Computes the products and activation sizes of a model's blocks for one sample, as numbers.

The time of every layout follows from these numbers, so that thousands of layouts need no second look at the model. The
names of attentions in a model's `ops` say who exchanges tokens. `temporal attention` exchanges frames among context
ranks, cross-attention and `spatial attention` stay local, and every other one runs over the context ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.model_traits import ReportsFlops
from nemo_vfm.parallel.apply.frozen_weights import only_adapters_learn
from nemo_vfm.parallel.plan.sharding_spec import Divisible, ShardingSpec, match_modules
from nemo_vfm.perf.flops import training_flops

Split = Literal["column", "row", "text", "whole"]
Over = Literal["tokens", "lines", "nothing"]
_OVER: dict[str, Over] = {"cross-attention": "nothing", "spatial attention": "nothing", "temporal attention": "lines"}


@dataclass(frozen=True, slots=True)
class Product:
    """A linear of a block."""

    inputs: int  #: its input features
    outputs: int  #: its output features
    #: which of the two tensor ranks share; `text` is a column split of a text's tokens, `whole` is no split, and a
    #: vector for each sample
    split: Split


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention of a block."""

    flops: float  #: forward, for one sample, in one block, every key counted
    length: float  #: keys that each query sees
    over: Over  #: what context ranks exchange for it
    causal: bool  #: whether half of the keys are skipped


@dataclass(frozen=True, slots=True)
class ModelWork:
    """A model as arithmetic, for one sample."""

    parameters: int  #: of the whole model
    flops: float  #: forward, of the whole model and one sample, causal attention counted whole
    training_flops: float  #: forward and backward, likewise
    learned: float  #: share of the parameters that have gradients, 0 to 1
    tokens: int  #: of a sample
    depth: int  #: number of blocks
    width: int  #: of a token between blocks
    kv_share: float  #: width of keys over that of queries
    heads: int  #: of attention, of keys and values where they are fewer
    head_dim: int  #: width of one
    products: tuple[Product, ...]  #: the linears of a block
    products_flops: float  #: what they cost together, forward
    attentions: tuple[Attention, ...]  #: those of a block
    first_flops: float  #: forward, before the blocks
    last_flops: float  #: forward, after them
    last_split: bool  #: whether tensor ranks share the latter, as a vocabulary
    block_split: int  #: parameters of a block that tensor ranks share
    block_whole: int  #: those that they do not
    first_parameters: int  #: of what the first stage alone has
    last_parameters: int  #: of what the last stage alone has

    @property
    def frozen(self) -> bool:
        """Whether most linears have no gradients of weights."""
        return self.learned < 1

    @property
    def gathers(self) -> int:
        """Linears of a block before which tokens of all tensor ranks come together."""
        return sum(product.split == "column" for product in self.products)

    @property
    def scatters(self) -> int:
        """Linears of a block after which sums over tensor ranks are taken."""
        return sum(product.split == "row" for product in self.products)


def work_of(model: nn.Module, inputs: Mapping[str, tuple[int, ...]], tokens: int) -> ModelWork:
    """A model's work on one sample.

    Args:
        model: on the meta device.
        inputs: shapes of one sample, as `ops` takes them.
        tokens: that these make.

    Raises:
        UserError: the model does not say what it costs, or how it can be cut.
    """
    if not isinstance(model, ReportsFlops) or not isinstance(model, Divisible):
        raise UserError(
            f"{type(model).__name__} lacks ops() or plan(), so its layouts cannot be costed; see "
            f"nemo_vfm/models/dit.py for an example"
        )
    how, ops = model.plan(), model.ops(inputs)
    blocks = list(model.get_submodule(how.blocks).children())
    products = tuple(
        Product(module.in_features, module.out_features, _split(name, how))
        for name, module in blocks[0].named_modules(prefix=f"{how.blocks}.0")
        if isinstance(module, nn.Linear)
    )
    width = next((product.outputs for product in products if product.split == "row"), products[0].inputs)
    linear = sum(op.flops for op in ops if op.kind == "linear")
    (first, first_parameters), (last, last_parameters) = (_end(model, names, tokens) for names in (how.first, how.last))
    q_width, kv_width = _attention_widths(blocks[0], width)
    split = sum(product.inputs * product.outputs for product in products if product.split != "whole")
    attentions = tuple(
        # A query of width w costs 4 w FLOPs for each key.
        Attention(each, each / (4 * tokens * q_width), _OVER.get(op.name, "tokens"), op.name.startswith("causal"))
        for op in ops if op.kind == "attention" and (each := op.flops / len(blocks))
    )  # fmt: skip
    frozen, learned = only_adapters_learn(model), 1.0
    if frozen:
        learned = sum(p.numel() for p in model.parameters() if p.requires_grad) / num_parameters(model)
    return ModelWork(
        parameters=num_parameters(model), flops=sum(op.flops for op in ops),
        training_flops=training_flops(ops, frozen=frozen), learned=learned,
        tokens=tokens, depth=len(blocks), width=width,
        kv_share=kv_width / q_width, heads=how.heads, head_dim=max(1, kv_width // how.heads), products=products,
        products_flops=(linear - first - last) / len(blocks),
        attentions=attentions, first_flops=first, last_flops=last,
        last_split=any(match_modules(name, how.column) for name in how.last), block_split=split,
        block_whole=num_parameters(blocks[0]) - split, first_parameters=first_parameters,
        last_parameters=last_parameters,
    )  # fmt: skip


def _split(name: str, how: ShardingSpec) -> Split:
    for split, patterns in (("text", how.whole_input), ("column", how.column), ("row", how.row)):
        if match_modules(patterns, (name,)):
            return split  # type: ignore[return-value]
    return "whole"


def _attention_widths(block: nn.Module, width: int) -> tuple[int, int]:
    """(width of all queries, of all keys), from the linear that makes both and the one that takes what they give."""
    named = dict(block.named_modules())
    for name, module in named.items():
        out = named.get(f"{name.rpartition('.')[0]}.out")
        if name.endswith("qkv") and isinstance(module, nn.Linear) and isinstance(out, nn.Linear):
            return out.in_features, (module.out_features - out.in_features) // 2
    return width, width


def _end(model: nn.Module, patterns: Sequence[str], tokens: int) -> tuple[float, int]:
    """FLOPs for so many tokens, and parameters, of the modules that begin or end the model."""
    named, flops, count = dict(model.named_modules()), 0.0, 0
    for name in match_modules(patterns, named):
        count += num_parameters(named[name])
        for module in named[name].modules():
            if isinstance(module, nn.Linear) and "modulation" not in name:  # which has one row for each sample
                flops += 2.0 * tokens * module.in_features * module.out_features
    return flops, count


def num_parameters(module: nn.Module) -> int:
    """Of all of a module."""
    return sum(parameter.numel() for parameter in module.parameters())
