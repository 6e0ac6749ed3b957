"""Reads and writes adapter files in our own format and in those of PEFT, diffusers, ComfyUI and Cosmos.

Our format is safetensors with the method, ranks, alphas, linears and the base's fingerprint in its header.
"""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from nemo_vfm.core.errors import CorruptCheckpoint, DataError, UserError
from nemo_vfm.core.storage.files import atomic_path, write_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters import peft_keys
from nemo_vfm.models.adapters.matrices import Matrices, require_pairs
from nemo_vfm.models.adapters.native_adapter_keys import (
    PREFIX,
    has_native_names,
    native_names,
    read_native,
    translate,
    write_native,
)
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.pretrained import read_mapping
from nemo_vfm.parallel.checkpoint.tensor_file import MappedFile, pack, read_header, write

Style = Literal["ours", "peft", "diffusers", "comfyui", "cosmos"]
SCHEMA, HEADER = "nemo_vfm.adapter/1", "nemo_vfm.adapter"
FILE, PEFT_FILE, PEFT_CONFIG = "adapter.safetensors", "adapter_model.safetensors", "adapter_config.json"
DIFFUSERS_FILE, DIFFUSERS_HEADER = "pytorch_lora_weights.safetensors", "lora_adapter_metadata"
_MAX_BYTES = 64 << 30  # more than any adapter has
_PEFT, _DIFFUSERS, _COSMOS = "base_model.model.", "transformer.", "net."


@dataclass(frozen=True, slots=True)
class AdapterContent:
    """The content of an adapter file."""

    style: Style  #: format of the file
    #: by linear, under this package's names for `ours`, else under those of diffusers or, for a language model, of
    #: transformers
    matrices: dict[str, Matrices]
    base: str = ""  #: fingerprint of the weights it was trained on; empty if the format has none
    #: what is added to weights and biases, by tensor under diffusers' names; only some ComfyUI files have it
    changes: Mapping[str, Tensor] = field(default_factory=dict)


def read_adapter(path: Path, model: nn.Module, *, alpha: float | None = None) -> AdapterContent:
    """Read an adapter from a file, or from a folder that holds one; its keys determine the format.

    `alpha` is that of every linear; None uses the file's, which not every format stores.
    """
    from safetensors import SafetensorError

    file = path
    if not path.is_file():
        found_files = [path / name for name in (FILE, PEFT_FILE, DIFFUSERS_FILE) if (path / name).is_file()]
        if len(found_files) != 1:
            kind = "several adapters" if found_files else "no adapter"
            raise UserError(f"{path} is not a file and contains {kind}; give a safetensors file, or a folder with "
                            f"{FILE}, {PEFT_FILE} or {DIFFUSERS_FILE}")  # fmt: skip
        (file,) = found_files
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise DataError(
                f"{file.name} has {file.stat().st_size:,} bytes; the limit for an adapter is {_MAX_BYTES:,}"
            )
        read_header(file)  # stricter than the library
        with closing(MappedFile(file)) as mapped:
            tensors, header = {key: mapped.get_tensor(key) for key in mapped.keys()}, mapped.metadata()  # noqa: SIM118
    except (SafetensorError, CorruptCheckpoint, OSError) as error:
        raise DataError(f"{file.name} cannot be read as safetensors: {error}") from error
    style = _style(file, tensors, header)
    found = _read(style, file, tensors, header, model, alpha)
    if found.matrices or not found.changes:
        require_pairs(file.name, found.matrices)
    if alpha is None:
        return found
    return replace(found, matrices={name: replace(one, alpha=alpha) for name, one in found.matrices.items()})


def write_adapter(
    folder: Path, style: Style, matrices: Mapping[str, Matrices], model: nn.Module, *, base: str = "",
    changes: Mapping[str, Tensor] | None = None,
) -> Path:  # fmt: skip
    """Write an adapter into an existing folder and return the file; see `AdapterContent` for matrices and changes.

    Only our format stores `base`, the fingerprint of the model's weights; only ComfyUI's stores changes.
    """
    if changes and style != "comfyui":
        raise DataError(f"the adapter also changes {len(changes)} weights and biases, such as {next(iter(changes))}, "
                        f"for which the style {style} has no place; write the style comfyui")  # fmt: skip
    is_language_model = isinstance(model, GPT)
    if is_language_model and style not in ("ours", "peft"):
        raise DataError(f"the style {style} is of video models; write the adapter of a language model as peft or ours")
    config = {} if style == "comfyui" else peft_keys.config_of(matrices)
    names = {"ours": FILE, "peft": PEFT_FILE, "diffusers": DIFFUSERS_FILE}
    header: dict[str, str] = {"format": "pt"}
    if style == "ours":
        header[HEADER] = json.dumps({"schema": SCHEMA, "base": base, **config})
    if style == "diffusers":
        header[DIFFUSERS_HEADER] = json.dumps({f"{_DIFFUSERS}{key}": value for key, value in config.items()})
    if style == "peft":
        task = {"task_type": "CAUSAL_LM"} if is_language_model else {}
        write_json(folder / PEFT_CONFIG, {"peft_type": "LORA", "base_model_name_or_path": None, **task, **config})
    if style == "cosmos":
        native = native_names(model)
        patterns = {key: {translate(native, name): value for name, value in config[key].items()}
                    for key in ("rank_pattern", "alpha_pattern")}  # fmt: skip
        targets = [translate(native, name) for name in config["target_modules"]]
        config |= {**patterns, "target_modules": targets}
        header[HEADER] = json.dumps({"schema": SCHEMA, "base": "", **config})
        matrices = {translate(native, name): one for name, one in matrices.items()}
    if style == "comfyui":
        tensors = write_native(matrices, changes or {}, model)
    else:
        prefixes = {"ours": "", "peft": _PEFT, "diffusers": _DIFFUSERS, "cosmos": _COSMOS}
        tensors = peft_keys.write_keys(prefixes[style], matrices)
    with atomic_path(folder / names.get(style, FILE)) as temporary:
        # Not by safetensors, whose files only their owner may read.
        write(temporary, pack(tensors, header))
    return folder / names.get(style, FILE)


def _style(file: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Style:
    first = next(iter(tensors), "")
    if first.startswith(_COSMOS):
        return "cosmos"
    if HEADER in header:
        return "ours"
    styles: dict[str, Style] = {_PEFT: "peft", _DIFFUSERS: "diffusers"}
    for prefix, style in styles.items():
        if first.startswith(prefix):
            return style
    if has_native_names(first):
        return "comfyui"
    raise DataError(f"{file.name} is not a known kind of adapter: its first key is {first[:100]!r}, expected a prefix "
                    f"among {', '.join((*styles, PREFIX, _COSMOS))}")  # fmt: skip


def _read(
    style: Style, file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module,
    alpha: float | None,
) -> AdapterContent:  # fmt: skip
    config: dict[str, Json] | None = None
    match style:
        case "ours":
            config = _header(file, header[HEADER])
            if config.get("schema") != SCHEMA or not isinstance(config.get("base"), str):
                raise DataError(
                    f"{file.name} has schema {str(config.get('schema'))[:60]!r}; this version reads {SCHEMA}"
                )
            return AdapterContent("ours", peft_keys.read_keys(file.name, tensors, "", config), config["base"])
        case "peft":
            config = read_mapping(file.with_name(PEFT_CONFIG))
            if config.get("peft_type") != "LORA":
                kind = str(config.get("peft_type"))[:40]
                raise DataError(f"{file.parent.name}/{PEFT_CONFIG}: peft_type {kind} is not LORA")
            return AdapterContent("peft", peft_keys.read_keys(file.name, tensors, _PEFT, config))
        case "diffusers":
            if DIFFUSERS_HEADER in header:
                prefixed = _header(file, header[DIFFUSERS_HEADER])
                config = {key.removeprefix(_DIFFUSERS): value for key, value in prefixed.items()}
            return AdapterContent("diffusers", peft_keys.read_keys(file.name, tensors, _DIFFUSERS, config))
        case "cosmos":
            config = _header(file, header[HEADER]) if HEADER in header else None
            if config is None and alpha is None:
                raise UserError(f"{file.name} stores no alpha, without which its strength is unknown; give alpha, "
                                f"which its training calls lora_alpha")  # fmt: skip
            native = peft_keys.read_keys(file.name, tensors, _COSMOS, config)
            theirs = {name: diffusers for diffusers, name in native_names(model).items()}
            return AdapterContent("cosmos", {translate(theirs, name): one for name, one in native.items()})
    matrices, changes = read_native(file.name, tensors, model)
    return AdapterContent("comfyui", matrices, changes=changes)


def _header(file: Path, text: str) -> dict[str, Json]:
    try:
        config = json.loads(text)
        if not isinstance(config, dict):
            raise ValueError("it is not a mapping")
    except (ValueError, RecursionError) as error:
        raise DataError(f"the header of {file.name} cannot be read: {error}") from error
    return config
