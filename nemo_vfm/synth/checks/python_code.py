"""Finds Python in answers, and reads it without running it."""

import ast
import re
import symtable
import warnings
from bisect import bisect_right

_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*(\w*)[^`]*")
_PYTHON = {"python", "python3", "py"}
_MAX_LETTERS = 100_000
_STARTS = ("def", "class", "import", "from", "for", "while", "with", "if", "return", "print(", "assert", "@")


def code_blocks(answer: str) -> list[str]:
    """The fenced blocks that are said to be Python; those that say nothing where none is.

    A fence that is never closed begins no block.
    """
    lines, named, nameless = answer.split("\n"), list[str](), list[str]()
    # The lines that close a fence are listed once: to look for one from each fence on takes minutes for a text of
    # fences.
    closing: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        if line.startswith(("```", "~~~")):
            closing.setdefault(line.rstrip(" \t"), []).append(place)
    at = 0
    while at < len(lines):
        opened = _FENCE.fullmatch(lines[at])
        places = closing.get(opened[1], []) if opened else []
        after = bisect_right(places, at)
        if opened and after < len(places):
            text = "".join(f"{line}\n" for line in lines[at + 1 : places[after]])
            if opened[2].lower() in _PYTHON:
                named.append(text)
            elif not opened[2]:
                nameless.append(text)
            at = places[after]
        at += 1
    return named or nameless


def code_in(answer: str) -> str:
    """All blocks as one program; the answer itself where it has no fence and is Python, else nothing."""
    if blocks := code_blocks(answer):
        return "\n".join(blocks)
    # A sentence of one word would be a program, too.
    looks_like_code = any(line.lstrip().startswith(_STARTS) for line in answer.splitlines())
    return answer if "```" not in answer and looks_like_code and parse(answer) else ""


def parse(source: str) -> ast.Module | None:
    """The syntax tree; None where the source does not compile."""
    if len(source) > _MAX_LETTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a strange escape in a string is none of our business
            tree = ast.parse(source)
            symtable.symtable(source, "program.py", "exec")  # finds names that are declared twice, or too late
        return None if _leaves_no_function(tree) else tree
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _leaves_no_function(node: ast.AST) -> bool:
    """Whether there is a `return` or the like outside of functions."""
    if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom | ast.Await):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    return any(map(_leaves_no_function, ast.iter_child_nodes(node)))


def signatures(tree: ast.Module) -> list[str]:
    """The first lines of the functions and classes of a module, such as `def area(width, height):`."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            found.append(f"{word} {node.name}({ast.unparse(node.args)}):")
        elif isinstance(node, ast.ClassDef):
            found.append(f"class {node.name}:")
            inner = ast.Module([part for part in node.body if isinstance(part, ast.FunctionDef)], [])
            found += [f"    {line}" for line in signatures(inner)]
    return found


def defined_names(tree: ast.Module) -> set[str]:
    """Of its functions and classes."""
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


def num_assertions(tree: ast.Module, about: set[str]) -> int:
    """Assertions that a run of the module meets for certain, and that depend on something of these names."""
    known, count = set(about), 0
    for node in tree.body:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and names & known:
            known |= names  # what is made of it, such as an object of its class
        count += isinstance(node, ast.Assert) and bool(names & known)
    return count
