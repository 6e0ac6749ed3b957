# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Our code's syntax trees in, the words it must not use out: print, pickle, eval, shells and their like."""

import ast
from collections.abc import Iterator

import pytest

from tests.support.repository import CODE, dotted, imports, python_files, tree, where

#: What may not be imported, and why.
BANNED_MODULES = {
    "pickle": "unpickling runs code of whoever wrote the file",
    "cPickle": "unpickling runs code of whoever wrote the file",
    "dill": "unpickling runs code of whoever wrote the file",
    "cloudpickle": "unpickling runs code of whoever wrote the file",
    "joblib": "its files are pickles",
    "shelve": "its values are pickles",
    "marshal": "it runs or crashes on bytes from elsewhere",
}
#: What may not be called, and why.
BANNED_CALLS = {
    "print": "messages go through core.log, results to sys.stdout by the command line",
    "eval": "it runs text from elsewhere",
    "exec": "it runs text from elsewhere",
    "compile": "it is the first half of exec",
    "torch.load": "weights are safetensors",
    "torch.save": "weights are safetensors",
    "yaml.load": "recipes are read by config/ in the strict subset",
    "yaml.unsafe_load": "it builds any object",
    "yaml.full_load": "it builds objects",
    "os.system": "it is a shell",
    "os.popen": "it is a shell",
    "subprocess.getoutput": "it is a shell",
    "shutil.unpack_archive": "an archive's names may lead out of the folder",
}
#: Methods that unpack archives, whatever the object is called.
BANNED_METHODS = {"extractall": "members of an archive are read by offset, never unpacked"}


def findings(source: ast.Module) -> Iterator[tuple[ast.AST, str, str]]:
    """(place, word, reason) of each banned word in a syntax tree."""
    for node in ast.walk(source):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in BANNED_CALLS:
            yield node, name, BANNED_CALLS[name]
        if isinstance(node.func, ast.Attribute) and node.func.attr in BANNED_METHODS:
            yield node, node.func.attr, BANNED_METHODS[node.func.attr]
        for keyword in node.keywords:
            value = getattr(keyword.value, "value", None)
            if keyword.arg == "shell" and value is not False:
                yield node, "shell=True", "arguments are lists, so that no text becomes a command"
            if keyword.arg == "allow_pickle" and value is not False:
                yield node, "allow_pickle=True", "arrays are read without objects"


def test_banned_words_are_not_used():
    found = [
        f"{where(path, node)} {word}: {reason}"
        for path in python_files(*CODE)
        for node, word, reason in findings(tree(path))
    ]
    assert not found, "\n".join(found)


def test_banned_modules_are_not_imported():
    found = [
        f"{where(path, node)} {name}: {BANNED_MODULES[name.split('.')[0]]}"
        for path in python_files(*CODE)
        for name, node in imports(path)
        if name.split(".")[0] in BANNED_MODULES
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "print('x')",
        "torch.load(f)",
        "eval(t)",
        "subprocess.run(c, shell=True)",
        "np.load(f, allow_pickle=True)",
        "tar.extractall(d)",
        "yaml.load(t)",
        "tarfile.open(f).extractall()",
    ],
)
def test_the_search_sees_each_kind_of_banned_word(line):
    assert list(findings(ast.parse(line)))
