# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps a captioner's successful answers on disk by its fingerprint: one file for each, whole or absent."""

from dataclasses import asdict
from pathlib import Path

from nemo_vfm.core.sanitize import clean
from nemo_vfm.core.storage.files import read_json, sha256_text, write_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_types import Caption

_TEXTS = ("text", "by", "model", "revision", "prompt_hash")
_NUMBERS = ("tokens_in", "tokens_out")


class Journal:
    """Keeps what a captioner said.

    Args:
        folder: where all captioners' answers lie; each fingerprint gets a folder of its own in it, so that going back
            to an earlier captioner costs nothing.
        fingerprint: of the captioner; empty keeps nothing.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder / sha256_text(fingerprint)[:16] if fingerprint else None

    def get(self, key: str) -> Caption | None:
        """What was said under this very key, or None."""
        if self._folder is None:
            return None
        try:
            return _caption(read_json(self._folder / f"{key}.json"), key)
        except (OSError, ValueError):
            return None

    def put(self, caption: Caption) -> None:
        """Keep a success. A failure is never kept: it is tried again by the next run."""
        if self._folder is not None and caption.spoken:
            write_json(self._folder / f"{caption.key}.json", asdict(caption))

    def forget(self, key: str) -> None:
        """As if it had never been said."""
        if self._folder is not None:
            (self._folder / f"{key}.json").unlink(missing_ok=True)


def _caption(entry: Json, key: str) -> Caption | None:
    """The entry as a caption, where it is one and says that it belongs to this key."""
    match entry:
        case {"key": str(own), "status": "success" | "truncated" as status} if own == key:
            text, by, model, revision, prompt_hash = (clean(str(entry.get(name, ""))) for name in _TEXTS)
            tokens_in, tokens_out = (int(entry.get(name) or 0) for name in _NUMBERS)
            caption = Caption(key, text, status, None, by, model, revision, prompt_hash, tokens_in, tokens_out)
            return caption if text else None
    return None
