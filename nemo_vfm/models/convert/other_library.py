# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Opens a folder of transformers or diffusers whose weights a model here can begin with."""

from pathlib import Path

from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.models.convert.dcp_folder import checkpoint_in
from nemo_vfm.models.convert.gpt_source import GptFolder, is_language_model
from nemo_vfm.models.convert.source_folder import SourceFolder
from nemo_vfm.models.convert.video.native_keys import prefixes_of
from nemo_vfm.models.convert.video.transformer_folder import TransformerFolder, transformer_in
from nemo_vfm.parallel.checkpoint import checkpoint_index, tensor_file

_PICKLED = frozenset({".pt", ".pth", ".ckpt", ".bin", ".nemo"})


def is_other_librarys(folder: Path) -> bool:
    """Whether it is a language model of transformers or a video model of diffusers, to be opened as such."""
    return is_language_model(folder) or transformer_in(folder) is not None


def opened_folder(folder: Path) -> SourceFolder:
    """Its parameters by our names, to be used in a `with`.

    Raises:
        UserError: there is no such folder, or its weights are no safetensors.
        DataError: it is damaged, or its weights are not those that config.json implies.
    """
    return GptFolder(folder) if is_language_model(folder) else TransformerFolder(folder)


def require_converted(path: Path) -> None:
    """UserError where only `nemo-vfm convert` reads what is at a path: in a process of its own, or with options."""
    if path.is_dir() and checkpoint_in(path) is not None:
        what = "a distributed checkpoint of torch"
    elif path.is_file() and path.suffix in _PICKLED:
        what = "a file of another program"
    elif path.suffix == checkpoint_index.SUFFIX and path.is_file() and _is_native(path):
        what = "a Cosmos under the names of NVIDIA's programs"
    else:
        return
    raise UserError(f"{path} is {what}, which is converted first: `nemo-vfm convert {path} OUT`, then start_from=OUT")


def _is_native(path: Path) -> bool:
    try:
        return bool(prefixes_of(tensor_file.read_header(path).shapes))
    except CorruptCheckpoint:
        return False
