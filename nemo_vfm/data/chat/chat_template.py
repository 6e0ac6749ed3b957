"""Finds and renders a tokenizer folder's chat template, with the functions that templates expect."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import jinja2

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.chat.bounded_jinja import BoundedEnvironment
from nemo_vfm.data.chat.template_limits import TemplateTooLong

_FILE, _CONFIG, _MORE = "chat_template.jinja", "tokenizer_config.json", "additional_chat_templates"
_MAX_BYTES = 1 << 20


def template_of(folder: Path, name: str = "default") -> str:
    """The text of a folder's template of this name."""
    found = _templates(folder)
    if name not in found:
        others = f"; it has {', '.join(sorted(found))}" if found else ""
        raise UserError(f"{folder} has no chat template named {name!r}{others}. Models that were not trained on "
                        f"conversations have none; give `template`, a file of jinja.")  # fmt: skip
    return found[name]


def has_template(folder: Path, name: str = "default") -> bool:
    """Whether a folder has a chat template of this name."""
    return name in _templates(folder)


def _templates(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    if (path := folder / _CONFIG).is_file():
        try:
            entry = json.loads(_read(path, 64 << 20)).get("chat_template")
            if isinstance(entry, list):
                found |= {str(one["name"]): str(one["template"]) for one in entry}
            elif entry is not None:
                found["default"] = str(entry)
        except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
            raise DataError(f"{_CONFIG} of {folder.name} cannot be read: {error}") from error
    for path in sorted((folder / _MORE).glob("*.jinja")):
        found[path.stem] = _read(path, _MAX_BYTES)
    if (path := folder / _FILE).is_file():
        found["default"] = _read(path, _MAX_BYTES)
    return found


def _read(path: Path, most: int) -> str:
    if path.stat().st_size > most:
        raise DataError(f"{path.name} of {path.parent.name} is too large")
    return path.read_bytes().decode(errors="replace")


class ChatTemplate:
    """A template that was read."""

    def __init__(self, text: str) -> None:
        self.text, self.environment = text, BoundedEnvironment()
        self.environment.filters["tojson"] = self.environment.bound_filter("tojson", _json)
        self.environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        try:
            self._made = self.environment.from_string(text)
        except Exception as error:  # jinja2 makes Python of it, which may be nested too deep for Python
            raise DataError(f"The chat template is not valid Jinja: {_cut(error)}") from error

    def render(
        self, messages: Sequence[Mapping[str, Json]], *, tools: Sequence[Json] | None = None,
        add_generation_prompt: bool = False, special: Mapping[str, str], variables: Mapping[str, Json] | None = None,
    ) -> str:  # fmt: skip
        """Messages as text, with marks of `{% generation %}`; `special` are bos_token and the like."""
        own = {"messages": list(messages), "tools": tools, "documents": None,
               "add_generation_prompt": add_generation_prompt, **special}  # fmt: skip
        if taken := sorted((variables or {}).keys() & (own.keys() | self.environment.globals.keys())):
            raise DataError(f"the chat template already has a value for {taken[0]}; leave it out")
        self.environment.begin()
        try:
            return str(self.environment.keep(self._made.render(**(variables or {}), **own)))
        except TemplateTooLong:
            raise
        except jinja2.TemplateError as error:
            raise DataError(f"The chat template refuses this conversation: {_cut(error)}") from error
        except Exception as error:  # whatever foreign code may raise
            raise DataError(f"The chat template fails on this conversation ({type(error).__name__}: {_cut(error)}). "
                            f"Are role and content of every message text?") from error  # fmt: skip


def _cut(error: Exception) -> str:
    """Templates may make messages of any length."""
    return str(error)[:500]


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    if len(form) > 100:
        raise TemplateTooLong("the chat template writes the time in more than 100 characters")
    return datetime.now().strftime(form)


def _json(
    value: Json, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:  # fmt: skip
    """Plain JSON: jinja2's own filter escapes letters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
