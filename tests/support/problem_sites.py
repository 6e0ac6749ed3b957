"""Lists the places in nemo_vfm/config that make a problem, and records which of them a call has reached."""

import ast
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.support.repository import ROOT, python_files

#: Calls that make a message for the user.
MAKERS = {"fail", "_fail", "_say", "_refusal", "Problem", "NotLocated", "BadValue", "TypeError"}
CONFIG = ROOT / "nemo_vfm" / "config"


def sites() -> dict[tuple[str, int], str]:
    """(file, first line) -> the source of each call that makes a problem."""
    found = {}
    for path in python_files("nemo_vfm/config"):
        if path.name == "dict_config.py":  # no recipe's text reaches it; see test_dict_config.py
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _name(node.func) in MAKERS:
                found[path.name, node.lineno] = (ast.get_source_segment(text, node) or "").splitlines()[0]
    return found


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def reached(action: Callable[[], object]) -> set[tuple[str, int]]:
    """(file, line) of every line of nemo_vfm/config that a call runs."""
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(str(CONFIG)):
            return None
        if event == "line":
            lines.add((frame.f_code.co_filename.rpartition("/")[2], frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines
