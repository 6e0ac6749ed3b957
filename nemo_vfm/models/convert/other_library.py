# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Opens a folder of transformers or diffusers whose weights a model here can begin with."""

from pathlib import Path

from nemo_vfm.models.convert.gpt_source import GptFolder, is_language_model
from nemo_vfm.models.convert.source_folder import SourceFolder
from nemo_vfm.models.convert.video.transformer_folder import TransformerFolder, transformer_in


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
