# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The texts that a recipe gives a logger in, nothing or a refusal out: keys belong into the environment."""

import re

from nemo_vfm.core.secret import is_key, register

_USER = re.compile(r"://[^/\s?#]*@")
_QUERY = re.compile(r"[?&#;][\w-]*(?:key|token|secret|password|passwd|credential|signature)[\w-]*=", re.IGNORECASE)
#: Beginnings that services give their keys, and long runs of letters and digits that nobody types as a name.
_KEY = re.compile(
    r"\b(?:sk|pk|hf|gh[pousr]|glpat|github_pat|dapi|xox[abp]|local|wandb_v\d)[-_]?[A-Za-z0-9_-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\beyJ[\w-]{10,}\.|(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{32,}"
)


def refuse_keys(variable: str, **texts: str | None) -> None:
    """Look at every text argument of a logger.

    Args:
        variable: where the key belongs, such as WANDB_API_KEY.
        texts: the arguments by name.

    Raises:
        ValueError: one looks like a key; the value is not repeated.
    """
    for name, text in texts.items():
        if text and (_USER.search(text) or _QUERY.search(text) or _KEY.search(text)):
            register(text)  # the complaint shows the line that it stands on
        if text and (_USER.search(text) or _QUERY.search(text)):
            raise ValueError(f"{name} is an address that holds a user or a key; give the bare address, "
                             f"and the key in the environment as {variable}")  # fmt: skip
        if text and (_KEY.search(text) or is_key(text)):
            raise ValueError(f"{name} looks like a key; recipes are kept and shown, so put keys into the "
                             f"environment as {variable} and remove it here")  # fmt: skip
