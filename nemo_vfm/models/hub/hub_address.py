# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Parses `hf://ORG/MODEL@REVISION`, and suggests `nemo-vfm get` where a user gave such a name for a folder."""

import re
from dataclasses import dataclass
from pathlib import Path

#: The hub's own rule for names, and what its addresses of other things begin with.
_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_NO_MODELS = ("datasets", "spaces", "kernels", "buckets", "models")
_REVISION = re.compile(r"(?!.*(?:\.\.|//|@\{))[^\s\x00-\x1f\x7f\\~^:?*\[/-][^\s\x00-\x1f\x7f\\~^:?*\[]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_USUAL = "expected hf://ORG/MODEL or hf://ORG/MODEL@REVISION"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A model on a hub.

    Args:
        model: `ORG/MODEL`.
        revision: a branch, a tag or a commit.
    """

    model: str
    revision: str = "main"

    @property
    def name(self) -> str:
        """The model's name without its organisation."""
        return self.model.partition("/")[2]

    @property
    def is_commit(self) -> bool:
        """Whether the revision can never mean another commit."""
        return is_commit(self.revision)

    def __str__(self) -> str:
        return f"hf://{self.model}@{self.revision}"


def hub_address(text: str) -> HubAddress:
    """Read an address.

    Raises:
        ValueError: it is not one of a model.
    """
    rest = text.removeprefix("hf://")
    name, at, revision = rest.partition("@")
    parts = name.rstrip("/").split("/")
    if rest == text:
        raise ValueError(f"{text[:200]!r} is not an address of a model: {_said_otherwise(text)}")
    if parts[0] in _NO_MODELS:
        raise ValueError(f"{text[:200]!r} is not a model; only models are brought here: {_USUAL}")
    if len(parts) > 2:
        raise ValueError(f"{text[:200]!r} names a file or folder inside a model; {_USUAL}, with --only "
                         f"'{'/'.join(parts[2:])[:100]}*' to bring a part of it")  # fmt: skip
    if len(parts) < 2 or not all(map(_NAME.fullmatch, parts)):
        raise ValueError(f"{text[:200]!r} does not name an organisation and a model; {_USUAL}")
    if at and not _REVISION.fullmatch(revision):
        raise ValueError(f"{revision[:200]!r} is not a branch, a tag or a commit; {_USUAL}")
    return HubAddress("/".join(parts), _spelled(revision) if at else "main")


def is_commit(text: object) -> bool:
    """Whether it is a commit's whole name: 40 hexadecimal digits, in lower case."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def get_hint(folder: Path | str) -> str:
    """The command that brings a model here, for the message that there is no such folder.

    A name such as ORG/MODEL stands in the command; that of a local folder does not.
    """
    text = re.sub(r"^hf:/+", "hf://", str(folder))
    bare = text.removeprefix("hf://")
    parts = bare.partition("@")[0].split("/")
    named = len(parts) == 2 and all(map(_NAME.fullmatch, parts)) and parts[0] not in _NO_MODELS
    if named and (bare != text or not Path(parts[0]).exists()):
        return f"nemo-vfm get hf://{bare}"
    return "nemo-vfm get hf://ORG/MODEL"


def _spelled(revision: str) -> str:
    return revision.lower() if is_commit(revision.lower()) else revision


def _said_otherwise(text: str) -> str:
    """What the user may have meant."""
    bare = re.sub(r"^(?:https?://)?[\w.-]*huggingface\.co/", "", text.removeprefix("hf:").strip("/"))
    found = "/".join(bare.split("/")[:2])
    return f"did you mean hf://{found}?" if re.fullmatch(r"[\w.-]+/[\w.@-]+", found) else _USUAL
