# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The facts of a language model's training in; a recipe with its training, and the model left to the user, out."""

from nemo_vfm.cli.migrate.draft import Draft

_MODEL = ("model_class", "pretrained", "width", "depth", "heads", "ffn", "in_channels", "text_dim", "patch")
_DATA = ("data_path", "batch_size", "micro_batch", "num_workers", "shuffle", "seq_length", "dataset")


def language(draft: Draft) -> None:
    """How it is trained can be said; what is trained cannot, since there is no language model here yet."""
    for slot, note in (("model", "a language model"), ("data", "its batches"), ("task", "next tokens, or preferences")):
        draft.put(slot, "???", f"{note}: a class of your own, with --trust")
    for fact in _MODEL:
        draft.leave(fact, "there is no language model here yet; an argument for your own class")
    for fact in _DATA:
        draft.leave(fact, "data of tokens is not here yet; an argument for your own class")
