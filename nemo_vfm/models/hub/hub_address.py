"""Parses `hf://ORG/MODEL@REVISION` and suggests `nemo-vfm get` to users who give such a name instead of a folder."""

import re
from dataclasses import dataclass
from pathlib import Path

#: The hub's rule for names, and the prefixes of repositories that are not models.
_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_NO_MODELS = ("datasets", "spaces", "kernels", "buckets", "models")
_REVISION = re.compile(r"(?!.*(?:\.\.|//|@\{))[^\s\x00-\x1f\x7f\\~^:?*\[/-][^\s\x00-\x1f\x7f\\~^:?*\[]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_EXPECTED = "expected hf://ORG/MODEL or hf://ORG/MODEL@REVISION"


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
        """The model's name without the organisation."""
        return self.model.partition("/")[2]

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a full commit hash, which never moves."""
        return is_commit(self.revision)

    def __str__(self) -> str:
        return f"hf://{self.model}@{self.revision}"


def hub_address(text: str) -> HubAddress:
    """Parse an address.

    Raises:
        ValueError: the text is not the address of a model.
    """
    rest = text.removeprefix("hf://")
    name, at, revision = rest.partition("@")
    parts = name.rstrip("/").split("/")
    if rest == text:
        raise ValueError(f"{text[:200]!r} is not the address of a model: {_suggestion(text)}")
    if parts[0] in _NO_MODELS:
        raise ValueError(f"{text[:200]!r} is not a model; only models can be downloaded: {_EXPECTED}")
    if len(parts) > 2:
        raise ValueError(f"{text[:200]!r} names a file or folder inside a model; {_EXPECTED}; to download "
                         f"only that part, add --only '{'/'.join(parts[2:])[:100]}*'")  # fmt: skip
    if len(parts) < 2 or not all(map(_NAME.fullmatch, parts)):
        raise ValueError(f"{text[:200]!r} does not name an organisation and a model; {_EXPECTED}")
    if at and not _REVISION.fullmatch(revision):
        raise ValueError(f"{revision[:200]!r} is not a branch, a tag or a commit; {_EXPECTED}")
    return HubAddress("/".join(parts), _normalized(revision) if at else "main")


def is_commit(text: object) -> bool:
    """Return whether the text is a full commit hash: 40 lower-case hexadecimal digits."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def get_hint(folder: Path | str) -> str:
    """Return the command that downloads a model, for messages about a missing folder.

    A name such as ORG/MODEL is repeated in the command, that of a local folder is not.
    """
    text = re.sub(r"^hf:/+", "hf://", str(folder))
    bare = text.removeprefix("hf://")
    parts = bare.partition("@")[0].split("/")
    is_model = len(parts) == 2 and all(map(_NAME.fullmatch, parts)) and parts[0] not in _NO_MODELS
    if is_model and (bare != text or not Path(parts[0]).exists()):
        return f"nemo-vfm get hf://{bare}"
    return "nemo-vfm get hf://ORG/MODEL"


def _normalized(revision: str) -> str:
    return revision.lower() if is_commit(revision.lower()) else revision


def _suggestion(text: str) -> str:
    """Return the address that the user may have meant."""
    bare = re.sub(r"^(?:https?://)?[\w.-]*huggingface\.co/", "", text.removeprefix("hf:").strip("/"))
    found = "/".join(bare.split("/")[:2])
    return f"did you mean hf://{found}?" if re.fullmatch(r"[\w.-]+/[\w.@-]+", found) else _EXPECTED
