"""Refuses keys among a logger's arguments: keys belong in the environment."""

import re

from nemo_vfm.core.network.key_shapes import looks_like_a_key
from nemo_vfm.core.secret import is_key, register

_USER = re.compile(r"://[^/\s?#]*@")
_QUERY = re.compile(r"[?&#;][\w-]*(?:key|token|secret|password|passwd|credential|signature)[\w-]*=", re.IGNORECASE)


def refuse_keys(variable: str, **texts: str | None) -> None:
    """ValueError where a logger's argument looks like a key, which belongs in `variable`; the value is not repeated."""
    for name, text in texts.items():
        if text and (_USER.search(text) or _QUERY.search(text) or looks_like_a_key(text)):
            register(text)  # the complaint shows the line that it stands on
        if text and (_USER.search(text) or _QUERY.search(text)):
            raise ValueError(f"{name} is a URL with a user or a key; give the bare URL, and put the key into the "
                             f"environment as {variable}")  # fmt: skip
        if text and (looks_like_a_key(text) or is_key(text)):
            raise ValueError(f"{name} looks like a key; recipes are stored and shown, so put keys into "
                             f"the environment as {variable} and remove it here")  # fmt: skip
