# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""One plain value and its annotation in, the Python value out, or a sentence; nothing is converted by guessing.

Values are judged as strict JSON: text becomes a Path and a whole number stands for a float, but "28" never becomes 28
and true never becomes 1.
"""

import json
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from nemo_vfm.config.errors import RecipeError, did_you_mean
from nemo_vfm.config.hints import in_words, is_literal, is_open
from nemo_vfm.config.tree import Plain, Scalar
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError


class BadValue(Exception):
    """The value does not fit; the text says what was expected."""


def convert(node: Scalar, hint: Any) -> object:
    """The value that a component receives.

    Raises:
        BadValue: it is not what the annotation asks for.
    """
    if is_open(hint):
        return node.value
    if hint is Duration:
        return _duration(node)
    try:
        return _adapter(hint).validate_json(json.dumps(node.value), strict=True)
    except ValidationError as error:
        raise BadValue(_sentence(node, hint, error)) from error
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise BadValue(f"a recipe cannot give {in_words(hint)} here") from error


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _duration(node: Scalar) -> Duration:
    if not isinstance(node.value, str):
        raise BadValue(f"expected a duration such as '400 steps', got {got(node)}; add the unit")
    try:
        return Duration.parse(node.value)
    except UserError as error:
        text = f"expected {in_words(Duration)}, got {got(node)}" if node.secret else str(error)
        raise BadValue(text) from error


def got(node: Scalar) -> str:
    """A value in words; one from the environment is not shown."""
    value = node.value
    if node.secret:
        return f"what {node.via} stands for"
    kind = {bool: "", int: "the number ", float: "the number ", str: "the text "}.get(type(value), "")
    text = json.dumps(value, ensure_ascii=False)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{kind}{shown}" + (f" (from {node.via})" if node.via else "")


def _sentence(node: Scalar, hint: Any, error: ValidationError) -> str:
    value = node.value
    if is_literal(hint):
        known = [str(option) for option in get_args(hint)]
        return f"expected {in_words(hint)}, got {got(node)}{did_you_mean(str(value), known)}"
    kinds = {"int_type", "float_type", "string_type", "bool_type", "path_type", "is_instance_of", "none_required"}
    first = error.errors()[0]
    if first["type"] in kinds:
        return f"expected {in_words(hint)}, got {got(node)}{_advice(value, hint)}"
    # The library's own sentence may quote the value, so a secret gets ours.
    return f"expected {in_words(hint)}, got {got(node)}" + ("" if node.secret else f": {first['msg']}")


def _advice(value: Plain, hint: Any) -> str:
    """What a near miss probably meant."""
    if hint is bool and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off", "true", "false"):
        return "; write true or false"
    if hint in (int, float) and isinstance(value, str) and _is_number(value):
        return "; remove the quotes"
    if hint is int and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    return "; add quotes" if hint is str and value is not None else ""


def _is_number(text: str) -> bool:
    from nemo_vfm.config.emit import NOWHERE
    from nemo_vfm.config.source import plain_value

    try:
        return not isinstance(plain_value(text, NOWHERE), str)
    except RecipeError:
        return False
