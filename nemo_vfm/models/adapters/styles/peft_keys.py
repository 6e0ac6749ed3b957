"""Reads and writes PEFT's tensor keys and its configuration of ranks and alphas.

PEFT stores the configuration in adapter_config.json, diffusers in the file's header.
"""

import re
from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.matrices import Matrices
from nemo_vfm.models.adapters.styles.peft_config import initial_of, require_known

_A, _B, _M = "lora_A", "lora_B", "lora_magnitude_vector"
#: PEFT also stores the base's weight of an adapted head, in case it was enlarged.
_BASE = "base_layer"
_KEY = re.compile(rf"(?P<linear>.+)\.(?P<kind>{_A}|{_B}|{_M}|{_BASE})(\.default)?(\.weight)?")
_PLAIN = re.compile(r"\^?[\w.\-]{1,300}\$?")
_MOST_ALPHA = 1_000_000


def read_keys(
    name: str, tensors: Mapping[str, Tensor], prefix: str, config: Mapping[str, Json] | None
) -> dict[str, Matrices]:
    """Read matrices by linear.

    Args:
        name: of the file, for messages.
        tensors: by key.
        prefix: prefix of every key.
        config: r, lora_alpha and their patterns in PEFT's terms; None sets alpha to the rank, as diffusers does.

    Raises:
        DataError: a key is not an adapter's, a matrix is missing, or the configuration contradicts the matrices.
    """
    if config is not None:
        require_known(name, config)
    kinds: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
        if match is None:
            raise DataError(f"{name} has {key[:200]!r}, which is not an adapter key: expected "
                            f"{prefix}LINEAR.{_A}.weight, {_B} or {_M}; whole weights, as of an enlarged vocabulary, "
                            f"are not supported: merge them with the library that made the file")  # fmt: skip
        kinds.setdefault(match["linear"], {})[match["kind"]] = tensor
    return {linear: _matrices(name, linear, kind, config) for linear, kind in kinds.items()}


def write_keys(prefix: str, given: Mapping[str, Matrices]) -> dict[str, Tensor]:
    """Return the tensors that `read_keys` reads; ranks and alphas are in `config_of`."""
    found = {}
    for linear, one in given.items():
        found[f"{prefix}{linear}.{_A}.weight"] = one.a
        found[f"{prefix}{linear}.{_B}.weight"] = one.b
        if one.magnitude is not None:
            found[f"{prefix}{linear}.{_M}"] = one.magnitude
    return found


def config_of(given: Mapping[str, Matrices]) -> dict[str, Json]:
    """Return PEFT's LoraConfig: r, lora_alpha, and patterns for the linears that differ."""
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


def _matrices(name: str, linear: str, given: Mapping[str, Tensor], config: Mapping[str, Json] | None) -> Matrices:
    if missing := [kind for kind in (_A, _B) if kind not in given]:
        raise DataError(f"{name} has no {missing[0]} for {linear}, so the adapter would have no effect there")
    if given[_A].ndim != 2:
        raise DataError(f"{name} has {_A} of {linear} with shape {tuple(given[_A].shape)}; expected two dimensions")
    rank = int(given[_A].shape[0])
    if config is None:
        return Matrices(given[_A], given[_B], float(rank), given.get(_M))
    declared = _option_of(name, config, "rank_pattern", linear, config.get("r"))
    if declared != rank:
        raise DataError(f"{name} declares rank {declared} for {linear}, but its matrices have rank {rank}")
    alpha = _option_of(name, config, "alpha_pattern", linear, config.get("lora_alpha"))
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= _MOST_ALPHA:
        raise DataError(f"{name} declares lora_alpha {str(alpha)[:40]} for {linear}; expected a number above 0, at "
                        f"most {_MOST_ALPHA:,}")  # fmt: skip
    alpha = float(alpha) * (rank**0.5 if config.get("use_rslora") else 1.0)
    if bool(config.get("use_dora")) != (_M in given):
        raise DataError(f"{name} declares use_dora: {config.get('use_dora')}, but {linear} has "
                        f"{'a' if _M in given else 'no'} {_M}")  # fmt: skip
    return Matrices(given[_A], given[_B], alpha, given.get(_M), initial_of(config), given.get(_BASE))


def _option_of(name: str, config: Mapping[str, Json], patterns: str, linear: str, default: Json) -> Json:
    """Return the first value whose pattern matches a linear's name or its suffix, else the default."""
    given = config.get(patterns) or {}
    if not isinstance(given, dict):
        raise DataError(f"{name} has a {patterns} that is not a mapping")
    for pattern, value in given.items():
        if not _PLAIN.fullmatch(pattern):
            raise DataError(f"{name} has {pattern[:100]!r} in {patterns}; patterns must be names of linears")
        plain = pattern.strip("^$")
        if linear == plain or (not pattern.startswith("^") and linear.endswith(f".{plain}")):
            return value
    return default


def _number(value: float) -> Json:
    return int(value) if float(value).is_integer() else value
