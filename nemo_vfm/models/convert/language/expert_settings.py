"""Reads a mixture of experts from a config.json of transformers, and writes it."""

from collections.abc import Mapping

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.blocks.text.experts import Experts
from nemo_vfm.models.convert.language.gpt_keys import flag, positive, same, shown, whole, wrong

_MOST_EXPERTS, _MOST_HIDDEN, _MOST = 4096, 1 << 20, 1000


def experts_of(config: Mapping[str, Json], depth: int) -> Experts:
    """What GPT is to be built with; what is missing is as in Qwen 3.

    Raises:
        DataError: they are none.
    """
    told: dict[str, Json] = {
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "router_aux_loss_coef": 0.001, "decoder_sparse_step": 1,
        **config,
    }  # fmt: skip
    names = [name for name in ("num_experts", "num_local_experts") if name in told]
    if len(names) == 2 and told[names[0]] != told[names[1]]:
        raise DataError(f"config.json says num_experts: {shown(told[names[0]])} and num_local_experts: "
                        f"{shown(told[names[1]])}, which mean the same; leave out the wrong one")  # fmt: skip
    balance = told["router_aux_loss_coef"]
    try:
        return Experts(
            count=whole(told, names[0], _MOST_EXPERTS) if names else 128,
            per_token=whole(told, "num_experts_per_tok", _MOST_EXPERTS),
            hidden=whole(told, "moe_intermediate_size", _MOST_HIDDEN),
            normalised=flag(told, "norm_topk_prob", False),
            balance=0.0 if same(balance, 0) or same(balance, 0.0) else positive(told, "router_aux_loss_coef"),
            dense_layers=_dense(told, depth),
        )
    except ValueError as error:
        raise DataError(f"config.json describes impossible experts: {error}") from error


def _dense(told: Mapping[str, Json], depth: int) -> tuple[int, ...]:
    """Layers with a perceptron: those that are named, and those between every so many."""
    named = told.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(type(layer) is int for layer in named):
        raise wrong("mlp_only_layers", named, "a list of layers")
    step = whole(told, "decoder_sparse_step", _MOST)
    return tuple(layer for layer in range(depth) if layer in named or (layer + 1) % step)


def experts_told(experts: Experts) -> dict[str, Json]:
    """The keys of config.json."""
    return {
        "num_experts": experts.count, "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.hidden, "norm_topk_prob": experts.normalised,
        "router_aux_loss_coef": experts.balance, "mlp_only_layers": list(experts.dense_layers),
        "decoder_sparse_step": 1,
    }  # fmt: skip
