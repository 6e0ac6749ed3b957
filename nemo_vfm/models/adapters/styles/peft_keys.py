# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the keys that PEFT gives matrices, and the ranks and alphas beside them.

A folder of PEFT has them in adapter_config.json, a file of diffusers in its header.
"""

import re
from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.matrices import Matrices

_A, _B, _M = "lora_A", "lora_B", "lora_magnitude_vector"
_KEY = re.compile(rf"(?P<linear>.+)\.(?P<kind>{_A}|{_B}|{_M})(\.default)?(\.weight)?")
_PLAIN = re.compile(r"\^?[\w.\-]{1,300}\$?")
_MOST_ALPHA = 1_000_000
#: What changes the function and is not read.
_NOT_READ = ("lora_bias", "fan_in_fan_out", "use_qalora", "layer_replication", "alora_invocation_tokens")


def read_keys(
    name: str, tensors: Mapping[str, Tensor], prefix: str, config: Mapping[str, Json] | None
) -> dict[str, Matrices]:
    """Matrices by linear.

    Args:
        name: of the file, for messages.
        tensors: by key.
        prefix: that every key begins with.
        config: r, lora_alpha and their patterns, as PEFT names them; None where nothing says an alpha, which then is
            the rank, as diffusers takes it.

    Raises:
        DataError: a key is none of an adapter's, or a matrix has no partner.
    """
    kinds: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
        if match is None:
            raise DataError(f"{name} has {key[:200]!r}, which is no key of an adapter: expected "
                            f"{prefix}LINEAR.{_A}.weight, {_B} or {_M}")  # fmt: skip
        kinds.setdefault(match["linear"], {})[match["kind"]] = tensor
    return {linear: _matrices(name, linear, own, config) for linear, own in kinds.items()}


def write_keys(prefix: str, given: Mapping[str, Matrices]) -> dict[str, Tensor]:
    """The inverse of `read_keys`, without ranks and alphas."""
    found = {}
    for linear, one in given.items():
        found[f"{prefix}{linear}.{_A}.weight"] = one.a
        found[f"{prefix}{linear}.{_B}.weight"] = one.b
        if one.magnitude is not None:
            found[f"{prefix}{linear}.{_M}"] = one.magnitude
    return found


def config_of(given: Mapping[str, Matrices]) -> dict[str, Json]:
    """r, lora_alpha and what differs from them, as PEFT's LoraConfig takes them."""
    ranks = {linear: one.a.shape[0] for linear, one in given.items()}
    alphas = {linear: _number(one.alpha) for linear, one in given.items()}
    rank, alpha = (Counter(each.values()).most_common(1)[0][0] for each in (ranks, alphas))
    return {
        "r": rank, "lora_alpha": alpha, "target_modules": sorted(given),
        "rank_pattern": {linear: one for linear, one in ranks.items() if one != rank},
        "alpha_pattern": {linear: one for linear, one in alphas.items() if one != alpha},
        "use_dora": next(iter(given.values())).magnitude is not None, "use_rslora": False, "lora_dropout": 0.0,
        "bias": "none",
    }  # fmt: skip


def _matrices(name: str, linear: str, own: Mapping[str, Tensor], config: Mapping[str, Json] | None) -> Matrices:
    if missing := [kind for kind in (_A, _B) if kind not in own]:
        raise DataError(f"{name} has no {missing[0]} for {linear}, and an adapter without it changes nothing there")
    if own[_A].ndim != 2:
        raise DataError(f"{name} has {_A} of {linear} in the shape {tuple(own[_A].shape)}; expected two dimensions")
    rank = int(own[_A].shape[0])
    if config is None:
        return Matrices(own[_A], own[_B], float(rank), own.get(_M))
    _require_read(name, config)
    said = _of(name, config, "rank_pattern", linear, config.get("r"))
    if said != rank:
        raise DataError(f"{name} says rank {said} of {linear}, and its matrices have {rank}")
    alpha = _of(name, config, "alpha_pattern", linear, config.get("lora_alpha"))
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= _MOST_ALPHA:
        raise DataError(f"{name} says lora_alpha {str(alpha)[:40]} of {linear}; expected a number above 0, at most "
                        f"{_MOST_ALPHA:,}")  # fmt: skip
    alpha = float(alpha) * (rank**0.5 if config.get("use_rslora") else 1.0)
    if bool(config.get("use_dora")) != (_M in own):
        raise DataError(f"{name} says use_dora: {config.get('use_dora')}, and {linear} has "
                        f"{'a' if _M in own else 'no'} {_M}")  # fmt: skip
    return Matrices(own[_A], own[_B], alpha, own.get(_M))


def _require_read(name: str, config: Mapping[str, Json]) -> None:
    if other := [key for key in _NOT_READ if config.get(key)]:
        raise DataError(f"{name} says {other[0]}, which is not read; merge the adapter where it was made")


def _of(name: str, config: Mapping[str, Json], patterns: str, linear: str, default: Json) -> Json:
    """A number of one linear: of a pattern that is the end of its name, or the common one."""
    given = config.get(patterns) or {}
    if not isinstance(given, dict):
        raise DataError(f"{name} has something else than a mapping as {patterns}")
    for pattern, value in given.items():
        if not _PLAIN.fullmatch(pattern):
            raise DataError(f"{name} has {pattern[:100]!r} in {patterns}; patterns are names of linears here")
        plain = pattern.strip("^$")
        if linear == plain or (not pattern.startswith("^") and linear.endswith(f".{plain}")):
            return value
    return default


def _number(value: float) -> Json:
    return int(value) if float(value).is_integer() else value
