"""Plants faults in a copy of the code, one at a time, and lists those that no test of their room sees.

    python -m tests.support.mutants [--count 100] [--seed 0] [--rooms data,train] [--marks 'not soak'] [--json FILE]

A fault is one operator or number of one function. The same seed chooses the same faults in the same code.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tests.support.repository import ROOT, nodes

_PARTS = ("nemo_vfm", "launcher", "tests", "recipes", "conf", "docs", "benchmarks", ".ci")
_OTHER_TESTS = {
    "__init__": ("runtime",), "runtime": ("runtime", "cli"), "explain": ("cli",), "config": ("config", "runtime"),
}  # fmt: skip
_SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
}  # fmt: skip
_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One change of one place: `old` at (line, column) becomes `new`."""

    file: str
    line: int
    column: int
    old: str
    new: str

    @property
    def room(self) -> str:
        parts = Path(self.file).parts
        return parts[1].removesuffix(".py") if parts[0] == "nemo_vfm" else parts[0]

    def plant(self, folder: Path) -> None:
        """Make the change in a copy of the code."""
        lines = (folder / self.file).read_text().splitlines(keepends=True)
        text = lines[self.line - 1]
        assert text[self.column :].startswith(self.old), f"{self} is not in this code"
        lines[self.line - 1] = text[: self.column] + self.new + text[self.column + len(self.old) :]
        (folder / self.file).write_text("".join(lines))


@cache
def faults_of(file: Path) -> list[Fault]:
    """Every fault that can be planted in the functions of a file."""
    lines, name = file.read_text().splitlines(), file.relative_to(ROOT).as_posix()
    functions = [node for node in nodes(file) if isinstance(node, ast.FunctionDef)]
    bodies = (node for function in functions for line in function.body for node in ast.walk(line))
    return sorted({fault for node in bodies for fault in _faults(node, lines, name)})


def _faults(node: ast.AST, lines: list[str], file: str) -> Iterator[Fault]:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.lineno == node.end_lineno:
        old = lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()
        yield _fault(file, node, lines, old, str(node.value + 1))
    pairs: list[tuple[ast.expr, ast.AST, ast.expr]] = []
    if isinstance(node, ast.Compare):
        pairs = list(zip([node.left, *node.comparators[:-1]], node.ops, node.comparators, strict=True))
    elif isinstance(node, ast.BoolOp):
        pairs = [(one, node.op, other) for one, other in zip(node.values, node.values[1:], strict=False)]
    elif isinstance(node, ast.BinOp):
        pairs = [(node.left, node.op, node.right)]
    for left, operator, right in pairs:
        if type(operator) not in _SWAPS or left.end_lineno != right.lineno:
            continue
        old, new = _SWAPS[type(operator)]
        between = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
        if between.strip(" ()") == old:
            column = len(lines[right.lineno - 1].encode()[: left.end_col_offset].decode()) + between.index(old)
            yield Fault(file, right.lineno, column, old, new)


def _fault(file: str, node: ast.expr, lines: list[str], old: str, new: str) -> Fault:
    return Fault(file, node.lineno, len(lines[node.lineno - 1].encode()[: node.col_offset].decode()), old, new)


def chosen(count: int, seed: int, rooms: list[str]) -> list[Fault]:
    """So many faults, spread over the rooms as evenly as can be, each room's over its files by their length."""
    files = [*(ROOT / "nemo_vfm").rglob("*.py"), *(ROOT / "launcher").rglob("*.py")]
    by_room: dict[str, list[Fault]] = {}
    for fault in (fault for file in sorted(files) for fault in faults_of(file)):
        by_room.setdefault(fault.room, []).append(fault)
    drawn = random.Random(seed)
    order = [name for name in sorted(by_room) if not rooms or name in rooms]
    for name in order:
        drawn.shuffle(by_room[name])
    found = [by_room[name][turn] for turn in range(count) for name in order if turn < len(by_room[name])]
    return found[:count]


def seen_by(fault: Fault, folder: Path, marks: str) -> str | None:
    """The test that fails with the fault in place; None where it survives."""
    kept = (folder / fault.file).read_text()
    fault.plant(folder)
    try:
        return next((failed for tests in _tests(fault, folder) if (failed := _run(tests, folder, marks))), None)
    finally:
        (folder / fault.file).write_text(kept)


def _tests(fault: Fault, folder: Path) -> Iterator[list[str]]:
    """First the files that name the module, then all of its room."""
    module = fault.file.removesuffix(".py").replace("/", ".")
    package, _, last = module.rpartition(".")
    wanted = (module, f"from {package} import {last}")
    texts = {file: file.read_text() for file in sorted((folder / "tests").rglob("test_*.py"))}
    named = [str(file) for file, text in texts.items() if any(word in text for word in wanted)]
    if named:
        yield named
    rooms = [folder / "tests" / name for name in _OTHER_TESTS.get(fault.room, (fault.room,))]
    yield [str(room) for room in rooms if room.is_dir()] or [str(folder / "tests")]


def _run(tests: list[str], folder: Path, marks: str) -> str | None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "--dist", "loadfile", "-m", marks, "--no-header",
               "-p", "no:cacheprovider", *tests]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "it does not end"
    if done.returncode in (0, 5):  # all pass, or no test is there
        return None
    said = done.stdout + done.stderr  # a conftest that cannot be imported is named in stderr, with status 4
    failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR ", "ImportError while loading"))]
    assert failed or done.returncode != 4, f"pytest did not understand what it was asked for: {said}"
    return failed[0] if failed else f"status {done.returncode}: {said[-300:]}"


def main() -> None:
    """Plant, test, and say how many were seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="so many faults")
    parser.add_argument("--seed", type=int, default=0, help="which")
    parser.add_argument("--rooms", default="", help="only in these, joined by commas")
    parser.add_argument("--marks", default="not soak and not slow and not cluster", help="which tests look for them")
    parser.add_argument("--json", type=Path, help="where to write what became of each")
    asked = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in _PARTS:
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (file for file in ROOT.iterdir() if file.is_file()):
            shutil.copy2(file, folder / file.name)
        for fault in chosen(asked.count, asked.seed, [room for room in asked.rooms.split(",") if room]):
            began = time.monotonic()
            test = seen_by(fault, folder, asked.marks)
            found.append({**asdict(fault), "seen_by": test})
            what = f"{fault.file}:{fault.line}: {fault.old} -> {fault.new} ({time.monotonic() - began:.0f} s)"
            print("seen    " if test else "SURVIVES", what, flush=True)  # noqa: T201
            if asked.json:
                asked.json.write_text(json.dumps(found, indent=1) + "\n")
    survivors = sum(one["seen_by"] is None for one in found)
    print(f"{len(found) - survivors} of {len(found)} faults are seen, {survivors} survive")  # noqa: T201


if __name__ == "__main__":
    main()
