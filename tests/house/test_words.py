"""Tests that our code uses no print, pickle, eval, shells and their like, and our prose no American spellings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import CODE, ROOT, dotted, imports, nodes, python_files, tree, where, yaml_files

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
    "__import__": "only config/locate.py imports by name",
    "runpy.run_path": "it runs a file from elsewhere",
    "pickle.load": "unpickling runs code of whoever wrote the file",
    "pickle.loads": "unpickling runs code of whoever wrote the file",
    "torch.hub.load": "it runs a repository's code",
    "tempfile.mktemp": "somebody else may make the file first",
    "os.execv": "a process of another program is started by subprocess, with a list",
    "yaml.load": "recipes are read by config/ in the strict subset",
    "yaml.unsafe_load": "it builds any object",
    "yaml.full_load": "it builds objects",
    "marshal.loads": "it crashes on bytes from elsewhere",
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
            if keyword.arg == "trust_remote_code" and value is not False:
                yield node, "trust_remote_code=True", "a model's repository would run its own code here"
            if keyword.arg == "weights_only" and value is not True:
                yield node, "weights_only=False", "the file would run code of whoever wrote it"
            if keyword.arg == "allow_pickle" and value is not False:
                yield node, "allow_pickle=True", "arrays are read without objects"


#: File -> the words it may use: one imports packages whose names stand in our own code, one runs a model's program in a
#: process that it has limited first, one tries in memory whether what Lightning will write can be read back, and names
#: its reader's error, and one sends between ranks what it will write.
ALLOWED = {"optional.py": ("__import__",), "child_start.py": ("exec", "compile"), "running_state.py": ("torch.save",),
           "checkpoint_values.py": ("torch.save", "pickle.UnpicklingError")}  # fmt: skip
#: Folders that do not belong to the package and yet run on people's machines; they may print.
BESIDE = ("benchmarks",)
#: What a benchmark runs as the other side, since it measures against it.
COMPARED = {"checkpoint.py": ("torch.save",)}


def files():
    """Every file to search, with the words that are allowed in it."""
    for path in python_files(*CODE):
        yield path, ALLOWED.get(path.name, ())
    for path in (*python_files(*BESIDE), ROOT / "setup.py"):
        yield path, ("print", *COMPARED.get(path.name, ()))


def test_banned_words_are_not_used():
    found = [f"{where(path, node)} {word}: {reason}" for path, allowed in files()
             for node, word, reason in findings(tree(path)) if word not in allowed]  # fmt: skip
    assert not found, "\n".join(found)


def test_banned_modules_are_not_imported():
    found = [
        f"{where(path, node)} {name}: {BANNED_MODULES[name.split('.')[0]]}"
        for path, allowed in files()
        for name, node in imports(path)
        if name.split(".")[0] in BANNED_MODULES and name not in allowed
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("line", [
    "print('x')", "torch.load(f)", "eval(t)", "subprocess.run(c, shell=True)", "np.load(f, allow_pickle=True)",
    "tar.extractall(d)", "yaml.load(t)", "tarfile.open(f).extractall()", "__import__(n)", "marshal.loads(b)",
    "AutoModel.from_pretrained(n, trust_remote_code=True)", "load(f, weights_only=False)",
    "AutoModel.from_pretrained(n, trust_remote_code=choice)",
])  # fmt: skip
def test_the_search_sees_each_kind_of_banned_word(line):
    assert list(findings(ast.parse(line)))


#: American spellings. Tokenizer, tokenize and optimizer are the field's names and have no other spelling here.
AMERICAN = re.compile(
    r"(?!(?:over|re|un|cap|item)?siz|prize|seize|(?:de)?tokeniz|optimizers?$|authorization$)\w+iz(?:e[ds]?|ing|ers?|ations?|able)$|\w*(?:color|behavior|neighbor)"
    r"|(?:un)?favor|flavor|honor|labor(?:s|ed)?$|(?:re|off-?)?center|gray|artifact|catalog(?!u)|(?:re)?analyz|(?:un)?initializ"
    r"|defense|judgment|fulfill(?:s|ment)?$|(?:cancel|label|model|travel|signal|level|total)(?:ed|ing)$|licenses?$"
)
#: Code and addresses in a text, which are not prose: fences, names in backticks, targets of links, tags, arguments.
QUOTED = re.compile(r"```.*?```|``.*?``|`[^`]*`|\]\([^)]*\)|<[^>]*>|^ +\w+: ", re.DOTALL | re.MULTILINE)
#: A word of prose; one with a sign or a capital inside, such as `a_b`, `a=b` or `aB`, is a name.
WORD = re.compile(r"(?<![\w./=-])[A-Za-z][a-z-]+(?![\w=/(]|\.\w)")


def american(text: str) -> Iterator[tuple[int, str]]:
    """(line, word) of each American spelling in a text."""
    text = QUOTED.sub(lambda quoted: "|" + "\n" * quoted[0].count("\n"), text)
    for word in WORD.finditer(text):
        if AMERICAN.match(word[0].lower()):
            yield text.count("\n", 0, word.start()), word[0]


def prose() -> Iterator[tuple[Path, int, str]]:
    """(file, line, text) of pages, of comments in recipes and ingredients, and of docstrings and messages."""
    for path in (*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")):
        yield path, 1, path.read_text(encoding="utf-8")
    for path in (*yaml_files("conf"), *yaml_files("recipes")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if (comment := re.search(r"(?:^|\s)#(?! SPDX)(.*)", line)) is not None:
                yield path, number, comment[1]
    for path in python_files(*CODE):
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 2:
                yield path, node.lineno, node.value


def test_prose_is_spelled_as_in_britain():
    found = [f"{path.relative_to(ROOT)}:{line + down} {word}" for path, line, text in prose()
             for down, word in american(text)]  # fmt: skip
    assert not found, "\n".join(found)


def test_the_search_sees_american_words_in_prose_alone():
    seen = [word for _, word in american("Colors of neighbors, normalized; it optimizes, was canceled.")]
    assert seen == ["Colors", "neighbors", "normalized", "optimizes", "canceled"]
    assert not list(
        american("`color`, [colours](color.md), color_range, ColorLayout, resized, the optimizer's tokenizer")
    )
