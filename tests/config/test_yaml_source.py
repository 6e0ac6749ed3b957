"""Tests that YAML texts become trees or are refused."""

import tracemalloc

import pytest

from nemo_vfm.config.recipe_errors import RecipeError
from nemo_vfm.config.tree import to_plain
from nemo_vfm.config.yaml_source import MAX_DEPTH, MAX_NODES, parse, read


@pytest.mark.parametrize(("text", "value"), [
    ("6e-3", 0.006), ("400_000", 400000), ("-7", -7), ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0),
    ("0", 0), ("+3", 3), ("true", True), ("false", False), ("null", None), ("~", None), ("", None), ("yes", "yes"),
    ("no", "no"), ("on", "on"), ("True", "True"), ("12:30:00", "12:30:00"), ("1.2.3", "1.2.3"),
    ("2026-11-21", "2026-11-21"), ("0x1f", "0x1f"), ("400 steps", "400 steps"), ("1__0", "1__0"), ("nan", "nan"),
    ("'28'", "28"), ('"a\\tb"', "a\tb"), ("[1, a, null]", [1, "a", None]), ("{a: {b: 1}}", {"a": {"b": 1}}),
])  # fmt: skip
def test_a_value_means_what_it_looks_like(text, value):
    read_value = to_plain(parse(f"key: {text}", "t"))["key"]
    assert read_value == value and type(read_value) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a: 1\nb: 010", 2, 4, "begins with a zero: write 10 for a number"),
        ("a: .inf", 1, 4, "not a finite number"),
        ("a: -.INF", 1, 4, "not a finite number"),
        ("a: .nan", 1, 4, "not a finite number"),
        ("a: 1e400", 1, 4, "too large"),
        ("a: -1.5e-400", 1, 4, "rounds to 0 as a 64-bit float"),
        ("a: {b:1, c: 2}", 1, 5, "write b: 1, with a space"),
        ("a: {b=1}", 1, 5, "write b: 1, with a space"),
        ("a: " + "9" * 400, 1, 4, "400 characters long"),
        ("a: 1\nb: 2\na: 3", 3, 1, "a appears twice; the first is on line 1"),
        ("a: !!python/object/apply:os.system [x]", 1, 4, "tag"),
        ("a: !mine 1", 1, 4, "tag"),
        ("a: !!str 1", 1, 4, "tag"),
        ("x: &x {a: 1}\ny:\n  <<: *x", 3, 3, "merge keys"),
        ("a: &x [*x]", 1, 8, "has no anchor above it"),
        ("? [a]\n: 1", 1, 3, "a key must be plain text"),
        ("cаt: 1", 1, 1, "not plain ASCII"),
        ("'': 1", 1, 1, "not plain"),
        ("a: 'x\u202ey'", 1, 6, "U+202E"),
        ("a: x\u200by", 1, 5, "U+200B"),
        ("a: 1\n---\nb: 2", 2, 1, "second one"),
        ("a: b: c", 1, 5, "quote a text"),
        ("a:\n\t- 1", 2, 1, "indent with spaces"),
        ("a: [1", 1, 6, "not valid YAML"),
        ("", 1, 1, "empty"),
        ('a: "\\0"', 1, 4, "NUL"),
    ],
)
def test_what_could_be_misread_is_refused_at_its_place(text, line, column, words):
    with pytest.raises(RecipeError) as error:
        parse(text, "t")
    (problem,) = error.value.problems
    assert words in problem.message
    assert (problem.mark.line, problem.mark.column) == (line, column)


def test_every_value_keeps_its_place():
    tree = parse("a: 1\nb:\n  c: [x,\n    y]\n", "t")
    inner = tree.items["b"].items["c"].items[1]
    assert (inner.value, inner.mark.line, inner.mark.column) == ("y", 4, 5)
    assert (tree.items["b"].keys["c"].line, tree.items["b"].keys["c"].column) == (3, 3)


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: |\r\n  x\r\n  y\r\n")
    tree = read(file)
    assert to_plain(tree) == {"a": 1, "b": "x\ny\n"}
    assert tree.keys["b"].line == 2


@pytest.mark.parametrize("data", [b"a: \xff", b"- 1", b"a: 1\n" * 300_000, b"x: " + b"a" * (1 << 20)])
def test_a_file_that_is_no_recipe_is_refused(tmp_path, data):
    file = tmp_path / "r.yaml"
    file.write_bytes(data)
    with pytest.raises(RecipeError):
        read(file)


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(RecipeError, match=r"cannot read .*: Is a directory"):
        read(tmp_path)


def billion_laughs(levels: int = 9) -> str:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (billion_laughs(), f"more than {MAX_NODES} values"),
        ("a: " + "[" * 10_000 + "]" * 10_000, f"more than {MAX_DEPTH} levels deep"),
        ("a: " + "{b: " * 10_000, f"more than {MAX_DEPTH} levels deep"),
        ("a: &x 1\nb: [" + "*x, " * 200 + "]", "more than 100 aliases"),
        ("a: [" + "1, " * 30_000 + "]", f"more than {MAX_NODES} values"),
    ],
)
def test_a_hostile_file_ends_in_a_sentence_with_little_memory(text, words):
    tracemalloc.start()
    with pytest.raises(RecipeError, match=words):
        parse(text, "t")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 60e6
