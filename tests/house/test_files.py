"""Tests the first lines, names and docstrings of every file."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

from tests.support.repository import ALL_PYTHON, CODE, ROOT, nodes, python_files, text_files, tree, where

RIDDLES = {"seen", "told", "asked", "warden", "whereabouts", "paper", "crew", "held", "lead", "together", "wire"}
#: "A recipe in, its jobs out."
_RIDDLE = re.compile(r"\bin[,;:]? .*\bout\b")
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
# Spelled in pieces, so that this file does not find itself.
MACHINE_PATHS = ["/" + "work/", "/" + "tmp/pre", "/" + "root/", "/" + "opt/wheels", "/" + "home/"]
REGISTRY_HOSTS = ["pypi" + ".org", "python" + "hosted", "download." + "pytorch", "ana" + "conda.org", "deb." + "debian",
                  "registry." + "npmjs", "nv" + "cr.io", "proxy." + "golang"]  # fmt: skip


def test_there_is_python_to_look_at():
    assert len(python_files("nemo_vfm")) > 10
    assert ROOT / "setup.py" in python_files(*ALL_PYTHON)


def test_one_file_says_the_licence_of_all_and_every_python_file_begins_with_its_docstring():
    (every,) = tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
    assert every == {"path": "**", "SPDX-FileCopyrightText": "Copyright (c) 2026 The nemo_vfm authors",
                     "SPDX-License-Identifier": "Apache-2.0"}  # fmt: skip
    assert (ROOT / "LICENSES/Apache-2.0.txt").read_bytes() == (ROOT / "LICENSE").read_bytes()
    first = {
        path: path.read_text(encoding="utf-8").removeprefix("#!/usr/bin/env python3\n")[:3]
        for path in python_files(*ALL_PYTHON)
    }
    wrong = [where(path) for path, text in first.items() if text != '"""' and path.name != "__init__.py"]
    assert not wrong, f"these files should begin with a docstring: {wrong}"


def test_every_module_has_a_docstring():
    silent = [where(path) for path in python_files(*ALL_PYTHON) if not ast.get_docstring(tree(path))]
    assert not silent, f"these modules have no docstring: {silent}"


def test_no_module_docstring_is_a_riddle_of_what_goes_in_and_comes_out():
    paths = [
        path for path in python_files("nemo_vfm", "launcher", "benchmarks", "tests") if path.parent.name != "verbs"
    ]
    first = {path: _first_sentence(path) for path in paths}
    found = [f"{where(path)}: {text}" for path, text in first.items() if _RIDDLE.search(text)]
    assert first and not found, f"begin with a verb that says what the module does: {found}"


def test_a_module_docstring_begins_with_a_verb_and_its_first_sentence_is_short():
    first = {path: _first_sentence(path) for path in python_files(*CODE) if path.parent.name != "verbs"}
    found = [
        f"{where(path)}: {text}"
        for path, text in first.items()
        if not re.match(r"[A-Z][a-z]+s\b", text) or len(text.split()) > 25
    ]
    assert first and not found, f"say in at most 25 words, verb first, what the module does: {found}"


def test_every_public_class_and_function_has_a_docstring():
    silent = []
    for path in python_files(*CODE):
        for node in tree(path).body:
            public = isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
            if public and not ast.get_docstring(node):
                silent.append(f"{where(path, node)} {node.name}")
    assert not silent, f"public, and without a docstring: {silent}"


def test_no_file_is_empty_but_for_its_licence():
    empty = [where(path) for path in python_files(*ALL_PYTHON) if not tree(path).body]
    assert not empty, f"nothing but a header in: {empty}"


def test_no_folder_or_file_has_a_name_that_says_nothing():
    names = {path: {path.stem, *path.relative_to(ROOT).parts} for path in python_files(*ALL_PYTHON)}
    vague = [where(path) for path, parts in names.items() if parts & BANNED_NAMES]
    assert not vague, f"name the idea instead: {vague}"


def test_no_two_modules_have_one_name():
    """A verb may have the name of what it calls, and a room the name of its first module; a job is a job."""
    paths = [path for path in python_files("nemo_vfm") if path.stem != "__init__" and path.parent.name != "verbs"]
    count = Counter(path.stem for path in paths if path.stem not in ("__main__", "job"))
    assert not (twice := [name for name, number in count.items() if number > 1]), f"twice in the package: {twice}"


def test_no_module_has_a_word_for_its_name_that_only_we_understand():
    found = [where(path) for path in python_files(*CODE) if path.stem in RIDDLES]
    assert not found, f"take the term that the field has: {found}"


def test_no_folder_is_too_full_to_be_read_at_a_glance():
    folders = Counter(where(path.parent) for path in python_files(*CODE))
    assert not (full := {name: n for name, n in folders.items() if n > 25}), f"make sub-packages: {full}"


def test_no_room_is_empty():
    rooms = [folder for folder in (ROOT / "nemo_vfm").iterdir() if (folder / "__init__.py").exists()]
    empty = [where(room) for room in rooms if len(list(room.rglob("*.py"))) < 2]
    assert rooms and not empty, f"a room is made when its first tenant moves in: {empty}"


def test_every_package_folder_has_its_init():
    bare = {where(path.parent) for path in python_files(*CODE) if not (path.parent / "__init__.py").exists()}
    assert not bare, f"without __init__.py these folders are left out of the wheel: {sorted(bare)}"


def test_no_class_is_called_base_or_manager():
    vague = [
        f"{where(path, node)} {node.name}"
        for path in python_files(*CODE)
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and re.fullmatch(r"_?Base[A-Z].*|.*Manager", node.name)
    ]
    assert not vague, f"name what it does: {vague}"


def test_no_file_holds_a_path_of_one_machine():
    assert not (found := _files_with(MACHINE_PATHS)), f"paths of a particular machine: {found}"


def test_no_file_names_a_package_registry():
    assert not (found := _files_with(REGISTRY_HOSTS)), f"pip knows where to look; hosts named in: {found}"


def _first_sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(tree(path)) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text)[0]


def _files_with(texts: list[str]) -> list[str]:
    found = []
    for path in text_files():
        content = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{where(path)}: {text}" for text in texts if text in content]
    return found
