"""Converts one plain value to the type of its annotation, or says why it does not fit. Nothing is guessed.

Values are checked as strict JSON. Text becomes a Path and a whole number a float, but "28" never becomes 28 and true
never becomes 1.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo

from nemo_vfm.config.build import mask_secrets
from nemo_vfm.config.hints import PARSED, bare_hint, choices, in_words, is_open, notes
from nemo_vfm.config.recipe_errors import UNSEEN, Mark, RecipeError, SourceText, did_you_mean, printable
from nemo_vfm.config.tree import Plain, Scalar
from nemo_vfm.config.yaml_source import plain_value
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.uri import Address

_ADAPTERS: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
_LONGEST_PATH = 4096  # what Linux takes


class BadValue(Exception):
    """The value does not fit; the text says what was expected."""


def convert(node: Scalar, hint: Any) -> object:
    """The value that a component receives."""
    if is_open(hint):
        return node.value
    inner = bare_hint(hint)
    if inner in PARSED:
        if not isinstance(node.value, str):
            raise BadValue(f"expected {in_words(inner)}, got {show(node)}; add the unit")
        try:
            return inner.parse(node.value)
        except UserError as error:
            text = f"expected {in_words(inner)}, got {show(node)}" if node.secret else str(error)
            raise BadValue(text) from error
    if isinstance(inner, type) and issubclass(inner, PurePath):
        text = str(node.value)
        if len(text) > _LONGEST_PATH:
            raise BadValue(f"a path has at most {_LONGEST_PATH} characters; this one has {len(text)}")
        if UNSEEN.search(text):  # an escape in quotes may spell one; on a terminal it would show another path
            raise BadValue("a path must not contain invisible characters")
        if "://" in text:
            raise BadValue("this is a URL; give a path on this machine")
        if text.startswith("~"):
            raise BadValue("~ is not expanded in recipes; write ${env:HOME}/... or the full path")
    try:
        value = _adapter(hint).validate_json(json.dumps(node.value), strict=True)
    except ValidationError as error:
        raise BadValue(_sentence(node, hint, error)) from error
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:  # the last of a limit on a text
        raise BadValue(f"a recipe cannot give {in_words(hint)} here") from error
    if choices(inner) and type(getattr(value, "value", value)) is not type(
        node.value
    ):  # true equals 1, and yet is none of Literal[1, 2]
        raise BadValue(f"expected {in_words(hint)}, got {show(node)}")
    return value


def key_value(key: str, hint: Any, mark: Mark) -> object:
    """The key that a component receives: text, or the number or choice that the annotation of keys asks for."""
    if bare_hint(hint) is str or is_open(bare_hint(hint)):
        return key
    if (known := choices(hint)) and key not in known:
        raise BadValue(f"expected {in_words(hint)}{did_you_mean(key, known)}")
    try:
        return convert(Scalar(key, mark), hint)
    except BadValue:
        return convert(Scalar(_plain_value(key, mark), mark), hint)


def _plain_value(text: str, mark: Mark) -> Plain:
    try:
        return plain_value(text, mark)
    except RecipeError as error:
        raise BadValue(error.problems[0].message) from error


def require_limits(value: object, hint: Any) -> None:
    """Judge a list or mapping, whose parts have been judged, by what `Annotated` says of the whole."""
    # Functions that would look at the parts are none: the parts are still as the recipe writes them.
    limits = [one for one in notes(hint) if isinstance(one, FieldInfo) or type(one).__module__ == "annotated_types"]
    if limits and isinstance(value, list | dict):
        try:
            _adapter(Annotated[(Any, *limits)]).validate_python(value)
        except ValidationError as error:
            raise BadValue(f"expected {in_words(hint)}: {error.errors()[0]['msg']}") from error


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return _ADAPTERS(hint)
    except TypeError:  # it says something that has no hash, such as Annotated[int, {"unit": "m"}]
        return TypeAdapter(hint)


def show(node: Scalar) -> str:
    """A value in words; one from the environment is not shown."""
    value = node.value
    if node.secret:
        return f"the value of {printable(node.via, 60)}"
    kind = {bool: "", int: "the number ", float: "the number ", str: "the text "}.get(type(value), "")
    text = json.dumps(value, ensure_ascii=False)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{kind}{shown}" + (f" (from {node.via})" if node.via else "")


def _sentence(node: Scalar, hint: Any, error: ValidationError) -> str:
    if known := choices(hint):
        return (
            f"expected {in_words(hint)}, got {show(node)}{'' if node.secret else did_you_mean(str(node.value), known)}"
        )
    kinds = {"int_type", "float_type", "string_type", "bool_type", "path_type", "is_instance_of", "none_required"}
    first = error.errors()[0]
    if first["type"] in kinds:
        return f"expected {in_words(hint)}, got {show(node)}{_advice(node, bare_hint(hint))}"
    # A value of ours says itself what is wrong with it; but of a path, not that it is no address.
    if first["type"] == "value_error" and (bare_hint(hint) is not Address or "://" in str(node.value)):
        return mask_secrets(str(first["ctx"]["error"]), [str(node.value)] if node.secret else [])
    # The library's own sentence may quote the value, so a secret gets ours.
    return f"expected {in_words(hint)}, got {show(node)}" + ("" if node.secret else f": {first['msg']}")


def _advice(node: Scalar, hint: Any) -> str:
    """What a near miss probably meant; of a secret not even that it looks like a number."""
    value: Plain = node.value
    if node.secret:
        return "; values from the environment are text" if hint in (int, float, bool) else ""
    if isinstance(value, str) and value[:1] in ("=", " "):
        return "; write a change as key=value, with one = and no spaces"
    if hint is bool and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off", "true", "false"):
        return "; write true or false"
    if hint in (int, float) and isinstance(value, str):
        with suppress(BadValue):
            if not isinstance(_plain_value(value, Mark(SourceText("", ()))), str):
                return "; remove the quotes"
    if hint is int and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    return "; add quotes" if hint is str and value is not None else ""
