"""Reads special and added tokens from the files beside a tokenizer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json

CONFIG_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in a text as a whole, before the text is cut."""

    content: str  #: its text
    number: int | None  #: its token, or None where the next free one is meant
    special: bool  #: whether it says nothing when decoded
    #: `lstrip`, `rstrip`, `single_word` and `normalized`, where they differ from the default
    settings: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Special:
    """What the files say."""

    roles: Mapping[str, str]  #: name such as eos_token -> the token's text
    added: tuple[AddedToken, ...]  #: in the order of their numbers


def read(folder: Path) -> Special:
    """Of a folder; files that are absent say nothing. DataError if one of them is damaged."""
    config, older, numbers = (_read_mapping(folder / name) for name in CONFIG_FILES)
    if "added_tokens_decoder" in config:  # as transformers: this list is newer than both other files, and ends them
        older, numbers = {}, {}
    named = {**config, **older}
    try:
        given = {role: named[role] for role in _ROLES if named.get(role)}
        roles = {role: str(one["content"] if isinstance(one, dict) else one) for role, one in given.items()}
        numbered = (config.get("added_tokens_decoder") or {}).items()
        decoder = {int(number): _parse_added(entry, int(number)) for number, entry in numbered}
        for content, number in numbers.items():
            decoder.setdefault(int(number), AddedToken(content, int(number), content in roles.values(), {}))
        listed = [decoder[number] for number in sorted(decoder)]
        known = {one.content for one in listed}
        rest = [_parse_added(named[role], None) for role in roles]
        # transformers 5 calls them extra_special_tokens, earlier ones additional_special_tokens.
        for name in ("additional_special_tokens", "extra_special_tokens"):
            more = named.get(name) or []
            rest += [_parse_added(one, None) for one in (more.values() if isinstance(more, dict) else more)]
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(
            f"{folder.name}: its special tokens are not in the form that transformers writes ({error})"
        ) from error
    return Special(roles, (*listed, *(one for one in rest if one.content not in known)))


def _read_mapping(path: Path) -> dict[str, Json]:
    if not path.is_file():
        return {}
    if path.stat().st_size > _MAX_BYTES:
        raise DataError(f"{path.name} of {path.parent.name} is too large")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name} of {path.parent.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path.name} of {path.parent.name} is not a mapping")
    return found


def _parse_added(entry: Json, number: int | None) -> AddedToken:
    """A token by name is special; one of `added_tokens_decoder` says itself whether it is."""
    if not isinstance(entry, dict):
        return AddedToken(str(entry), number, True, {})
    usual = ("lstrip", "rstrip", "single_word", "normalized")
    special = bool(entry.get("special", False)) if number is not None else True
    return AddedToken(
        str(entry["content"]), number, special, {name: bool(entry[name]) for name in usual if name in entry}
    )
