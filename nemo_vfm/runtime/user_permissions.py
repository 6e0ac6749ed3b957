"""Reads what the user allows: `--allow-host`, `--allow-write`, and the user's own endpoints file.

What a recipe was allowed to write is remembered in the user's own folder, so that its run folder can be resumed alone.
Nothing in a run folder can grant this: it may come from somebody else. An entry is found by the hash of the whole
recipe, and so permits only what the user permitted when exactly this recipe ran.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from nemo_vfm.config import RecipeError
from nemo_vfm.config.tree import Map, Scalar, Seq
from nemo_vfm.config.yaml_source import MAX_BYTES, parse
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.network.permission import (
    AllowedHost,
    Permissions,
    allowed_folder,
    allowed_host,
    allowed_place,
    merge_hosts,
    require_variable,
)
from nemo_vfm.core.network.ssrf_guard import service_url
from nemo_vfm.core.storage.files import read_json, sha256_file, sha256_text, write_json
from nemo_vfm.core.storage.uri import SCHEMES, Address

VARIABLE = "NEMO_VFM_ENDPOINTS"
_WRITE = "write"
_KEYS = ("url", "api_key_env", "allow_private")


def permissions(words: Sequence[str], recipe: Path | None = None) -> Permissions:
    """Everything that the user allows.

    Args:
        words: what stands behind each `--allow-host`, and folders of `--allow-write` as `file:///FOLDER`.
        recipe: its file; an endpoints file that lies beside it is not the user's.
    """
    try:
        typed = [allowed_host(word) for word in words]
        merge_hosts(typed)
    except ValueError as error:
        raise UserError(f"--allow-host: {error}") from error
    # The user's file: where NEMO_VFM_ENDPOINTS says, else in the user's folder of settings.
    settings = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(settings) if settings.startswith("/") else _home() / ".config"
    named = os.environ.get(VARIABLE)
    file = Path(named).expanduser() if named else folder / "nemo_vfm" / "endpoints.yaml"
    try:
        found, trouble = _read(file, recipe), ""
    except (UserError, OSError) as error:
        found, trouble = [], str(error)
    before: list[Path] = []  # what the user let exactly this recipe write; nothing where the user has not run it
    if recipe is not None:
        with suppress(OSError, ValueError, TypeError, KeyError, RuntimeError):
            before = [Path(path) for path in read_json(_file(sha256_file(recipe)))["writes"]]
    kept = [allowed_folder(str(path), "before") for path in before]
    return Permissions((*typed, *found, *kept), _home_path(file), trouble)


def _home_path(file: Path) -> str:
    return f"~/{file.relative_to(_home())}" if file.is_relative_to(_home()) else str(file)


def _home() -> Path:
    try:
        return Path.home().resolve()
    except RuntimeError:  # a container's user may have none
        return Path("/")


def _read(file: Path, recipe: Path | None) -> list[AllowedHost]:
    """Its entries; none where there is no file."""
    if not file.exists():
        return []
    real = file.resolve()
    for folder in (Path.cwd(), *((recipe.parent,) if recipe is not None else ())):
        # Whoever works at home, or above it, has everything below.
        if real.is_relative_to(folder.resolve()) and not _home().is_relative_to(folder.resolve()):
            raise UserError(f"it is in {folder.resolve()}, where recipes come from; keep it in your own folder")
    with real.open("rb") as opened:
        found = os.fstat(opened.fileno())
        for what, state in ((real, found), (real.parent, real.parent.stat())):
            if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise UserError(f"others can write {what}; chmod go-w it")
            if state.st_uid not in (os.geteuid(), 0):
                raise UserError(f"{what} belongs to another user (uid {state.st_uid}); chown it to yourself")
        if any(one.stat().st_mode & stat.S_IWOTH and not one.stat().st_mode & stat.S_ISVTX for one in real.parents):
            raise UserError(f"others can write a folder above {real}; chmod o-w it")
        data = opened.read(MAX_BYTES + 1)
    try:
        if len(data) > MAX_BYTES:
            raise UserError(f"it has more than {MAX_BYTES} bytes")
        return list(_entries(parse(data.decode("utf-8-sig"), str(file)), file))
    except (RecipeError, UnicodeDecodeError) as error:
        raise UserError(str(error)) from error


def _entries(node: object, file: Path) -> Iterator[AllowedHost]:
    if not isinstance(node, Map):
        raise UserError("it must hold a mapping: NAME: {url: https://..., api_key_env: VARIABLE, allow_private: false}")
    for name, entry in node.items.items():
        try:
            source = f"{name} in {_home_path(file)}"
            if name != _WRITE:
                yield _entry(name, entry, source)
                continue
            for one in entry.items if isinstance(entry, Seq) else [entry]:
                if not isinstance(entry, Seq) or not isinstance(one, Scalar):
                    raise ValueError("write must be a list of folders that runs may write in")
                yield allowed_folder(str(Path(str(one.value)).expanduser()), source)
        except ValueError as error:
            mark = node.key_mark(name)
            raise UserError(f"line {mark.line}, {name}: {error}") from error


def _entry(name: str, node: object, source: str) -> AllowedHost:
    if not isinstance(node, Map) or not set(node.items) <= set(_KEYS) or "url" not in node.items:
        raise ValueError(f"an endpoint takes {', '.join(_KEYS)}, and needs url")
    if not all(isinstance(value, Scalar) for value in node.items.values()):
        raise ValueError("each of its values must be a single one")
    url, variable, private = (getattr(node.items.get(key), "value", None) for key in _KEYS)
    if not isinstance(url, str) or not (variable is None or isinstance(variable, str)):
        raise ValueError("url and api_key_env must be texts")
    if private not in (None, True, False):
        raise ValueError("allow_private must be true or false")
    if variable is not None:
        require_variable(variable)
    if url.partition("://")[0] in (*SCHEMES, "ray"):
        # A bucket or a Ray cluster; a folder of a bucket stands for the whole of it.
        whole = url if url.startswith("ray://") else f"{Address(url).scheme}://{Address(url).bucket}"
        return AllowedHost(allowed_place(whole, variable).place, source=source, name=name)
    where = service_url(url)
    return AllowedHost(where.origin, variable, bool(private), source, name, url)


def remember(recipe: str, writes: Sequence[Path]) -> None:
    """Keep what a recipe of this text was allowed to write outside its run folder and the working directory."""
    if not writes:
        return
    try:
        file = _file(sha256_text(recipe))
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(file, {"writes": [str(path) for path in writes]})
    except (OSError, RuntimeError) as error:  # a container's user may have no home
        warn(f"the permissions to write cannot be stored ({error}); give them again to resume from the run folder's "
             f"recipe.yaml: {', '.join(map(str, writes))}")  # fmt: skip


def _file(digest: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path.home() / ".local/state"
    return folder / "nemo_vfm/allowed_writes" / f"{digest}.json"
