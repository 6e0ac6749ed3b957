"""Reads and writes PEFT's tensor keys and its configuration, whose keys are checked against a list of known ones.

PEFT stores the configuration in adapter_config.json, diffusers in the file's header.
"""

import re
from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from nemo_vfm.core import log
from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.matrices import Initial, Matrices

#: Keys that are read.
_READ = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "init_lora_weights")
#: Keys that change nothing once the matrices are trained, whatever their value. The settings of an initialization
#: matter only for what `init_lora_weights` names; VeLoRA changes only the backward pass.
_WITHOUT_EFFECT = (
    "peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout", "merge_weights",
    "megatron_core", "runtime_config", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config",
    "qalora_group_size", "ensure_weight_tying",
    "schema", "base",  # in our own header
)  # fmt: skip
#: Keys that change the result unless they are empty or have this value.
_NEUTRAL: Mapping[str, Json] = {
    "bias": "none", "fan_in_fan_out": False, "lora_bias": False, "use_qalora": False, "enable_lora": None,
    "modules_to_save": None, "trainable_token_indices": None, "target_parameters": None, "layer_replication": None,
    "megatron_config": None, "alora_invocation_tokens": None, "monteclora_config": None, "use_bdlora": None,
    "arrow_config": None, "kasa_config": None,
}  # fmt: skip
KNOWN = frozenset((*_READ, *_WITHOUT_EFFECT, *_NEUTRAL))
#: Initializations that leave the base as it is; MiCA reads it and freezes B.
_ON_THE_BASE = ("true", "false", "none", "gaussian", "eva", "orthogonal", "mica")
#: Initializations that take a part out of the base which can be computed again.
_REDUCING: Mapping[str, Initial] = {"pissa": "pissa", "olora": "olora"}


def require_known(name: str, config: Mapping[str, Json]) -> None:
    """Refuse a configuration with an option that is unknown or that changes the result in a way not computed here."""
    if changing := [key for key, neutral in _NEUTRAL.items() if config.get(key) and config[key] != neutral]:
        raise DataError(f"{name} sets {', '.join(changing)}, which changes the result and is not supported; merge the "
                        f"adapter into its base with the library that made it")  # fmt: skip
    unknown = [key for key in config if key not in KNOWN]
    if given := [key for key in unknown if config[key] is not None]:
        raise DataError(f"{name} sets {', '.join(map(repr, given))[:400]}, which this version does not support and "
                        "which may change the result; remove what does not, or merge the adapter into its base with "
                        f"the library that made it")  # fmt: skip
    if unknown:
        log.warn(f"{name} has keys that this version does not support; all are null and count as off: "
                 f"{', '.join(unknown)[:400]}")  # fmt: skip
    start = str(config.get("init_lora_weights")).lower()
    if start not in (*_ON_THE_BASE, *_REDUCING):
        raise DataError(
            f"{name} has init_lora_weights {start[:40]}, which changed the base by amounts that are not "
            f"stored; save it again by PEFT's save_pretrained with "
            f"path_initial_model_for_weight_conversion, or merge it with the library that made it"
        )


_A, _B, _M = "lora_A", "lora_B", "lora_magnitude_vector"
#: PEFT also stores the base's weight of an adapted head, in case it was enlarged.
_BASE = "base_layer"
_KEY = re.compile(rf"(?P<linear>.+)\.(?P<kind>{_A}|{_B}|{_M}|{_BASE})(\.default)?(\.weight)?")
_PLAIN = re.compile(r"\^?[\w.\-]{1,300}\$?")
_MAX_ALPHA = 1_000_000


def read_keys(
    name: str, tensors: Mapping[str, Tensor], prefix: str, config: Mapping[str, Json] | None
) -> dict[str, Matrices]:
    """Read matrices by linear."""
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
    alphas = {linear: one.alpha for linear, one in given.items()}
    alphas = {linear: int(alpha) if float(alpha).is_integer() else alpha for linear, alpha in alphas.items()}
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
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= _MAX_ALPHA:
        raise DataError(f"{name} declares lora_alpha {str(alpha)[:40]} for {linear}; expected a number above 0, at "
                        f"most {_MAX_ALPHA:,}")  # fmt: skip
    alpha = float(alpha) * (rank**0.5 if config.get("use_rslora") else 1.0)
    if bool(config.get("use_dora")) != (_M in given):
        raise DataError(f"{name} declares use_dora: {config.get('use_dora')}, but {linear} has "
                        f"{'a' if _M in given else 'no'} {_M}")  # fmt: skip
    initial = _REDUCING.get(str(config.get("init_lora_weights")).lower())  # None: it left the base as it was
    return Matrices(given[_A], given[_B], alpha, given.get(_M), initial, given.get(_BASE))


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
