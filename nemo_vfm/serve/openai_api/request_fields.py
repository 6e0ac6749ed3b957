"""Reads the fields of a request, and refuses those that would be ignored."""

import json
from collections.abc import Mapping

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.openai_api.api_error import ApiError

_LONGEST_SHOWN, _LONGEST_TEXT = 80, 256


class RequestFields:
    """A JSON object of which every field must be read; a null is the same as an absent field.

    Args:
        body: the object.
    """

    def __init__(self, body: Mapping[str, Json]) -> None:
        self._body = body
        self._known: set[str] = set()

    def value(self, name: str) -> Json:
        """As it is; None where it is absent."""
        self._known.add(name)
        return self._body.get(name)

    def integer(self, name: str, default: int | None, lowest: int, highest: int) -> int | None:
        """A whole number in a range."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise self.wrong(name, f"a whole number from {lowest} to {highest}")
        return value

    def number(self, name: str, default: float, lowest: float, highest: float) -> float:
        """A number in a range."""
        value = self.value(name)
        if value is None:
            return default
        # Infinity and NaN are in no range, and only a number in the range is sure to fit into a float.
        if not isinstance(value, int | float) or isinstance(value, bool) or not lowest <= value <= highest:
            raise self.wrong(name, f"a number from {lowest:g} to {highest:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false; absent is false."""
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return bool(value)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """One text or a list of them, none of them empty or longer than 256 characters."""
        value = self.value(name)
        found = [value] if isinstance(value, str) else value or []
        if not isinstance(found, list) or len(found) > most or not all(map(_is_short_text, found)):
            raise self.wrong(name, f"a text, or a list of at most {most}, each of 1 to {_LONGEST_TEXT} characters")
        return tuple(found)

    def name(self, name: str) -> None:
        """A text that means nothing to this server, such as the client's name for its user."""
        if not isinstance(self.value(name), str | None):
            raise self.wrong(name, "a text")

    def neutral(self, name: str, *values: Json) -> None:
        """A field that is not honoured: only values that ask for nothing pass."""
        value = self.value(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in values):
            hint = f"; only {' or '.join(map(json.dumps, values))} is allowed" if values else ""
            raise ApiError(400, f"{name} is not supported by this server{hint}; leave it out", param=name)

    def require_all_read(self) -> None:
        """Refuse fields that nobody has asked for."""
        if unknown := sorted(self._body.keys() - self._known):
            name = unknown[0][:_LONGEST_SHOWN]
            raise ApiError(400, f"{name} is not a field of this server; leave it out", param=name)

    def wrong(self, name: str, expected: str) -> ApiError:
        """The error about a value that cannot be."""
        shown = json.dumps(self._body[name])[:_LONGEST_SHOWN]
        return ApiError(400, f"{name} must be {expected}, got {shown}", param=name)


def _is_short_text(value: Json) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= _LONGEST_TEXT
