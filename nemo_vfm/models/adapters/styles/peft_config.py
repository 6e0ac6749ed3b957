"""Checks a foreign adapter's configuration, PEFT's LoraConfig, against a list of the keys that are known."""

from collections.abc import Mapping

from nemo_vfm.core import log
from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.matrices import Initial

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
    """Refuse a configuration with an option that is unknown or that changes the result in a way not computed here.

    Raises:
        DataError: with all such options.
    """
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


def initial_of(config: Mapping[str, Json]) -> Initial | None:
    """Return the initialisation that took a part out of the base; None if it left the base as it was."""
    return _REDUCING.get(str(config.get("init_lora_weights")).lower())
