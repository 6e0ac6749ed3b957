"""Tests which code is found in answers, and what is read off it without running it."""

import pytest

from nemo_vfm.synth.checks.python_code import code_blocks, code_in, num_assertions, parse, signatures


@pytest.mark.parametrize(("answer", "blocks"), [
    ("```python\nx = 1\n```", ["x = 1\n"]),
    ("So:\n```Python3 title=a.py\nx = 1\n```\nand\n```\nout put\n```\n~~~py\ny\n~~~", ["x = 1\n", "y\n"]),
    ("```\nx = 1\n```", ["x = 1\n"]),
    ("```bash\nls\n```", []),
    ("```python\nx = 1", []),
    ("Use `x = 1`.", []),
    ('````python\ns = """\n```\n"""\n````', ['s = """\n```\n"""\n']),
])  # fmt: skip
def test_blocks_of_python_are_found(answer: str, blocks: list[str]) -> None:
    assert code_blocks(answer) == blocks


def test_an_answer_that_is_a_program_needs_no_fence_and_a_word_is_no_program() -> None:
    assert code_in("def f():\n    return 1\n") == "def f():\n    return 1\n"
    assert code_in("```python\na = 1\n```\n```python\nb = 2\n```") == "a = 1\n\nb = 2\n"
    for prose in ("Sorry", "for example", "return the book", "Use import.", "```python\nx = 1", ""):
        assert code_in(prose) == ""


@pytest.mark.parametrize("source", ["x = = 1", "return 1", "\0", "def f(a, a): pass", "(" * 5000, "x = 1\n" * 40_000])
def test_what_does_not_compile_has_no_tree(source: str) -> None:
    assert parse(source) is None and parse("s = '\\d'") is not None


def test_signatures_say_how_a_program_is_called() -> None:
    tree = parse(
        "import os\nclass A(B):\n    x = 1\n    def get(self, k=2):\n        def inner(): ...\nasync def f(*a): ..."
    )
    assert tree and signatures(tree) == ["class A:", "    def get(self, k=2):", "async def f(*a):"]


@pytest.mark.parametrize(("tests", "count"), [
    ("assert f(1) == 2\nassert f(2) == 3", 2),
    ("assert True\nassert 1 + 1 == 2\nx = 5\nassert x", 0),
    ("def test():\n    assert f(1) == 2\n\nif False:\n    assert f(1)", 0),
    ("s = f()\nt = s.more\nassert t == 1", 1),
    ("print(f(1))", 0),
])  # fmt: skip
def test_assertions_count_that_are_met_and_depend_on_the_program(tests: str, count: int) -> None:
    tree = parse(tests)
    assert tree and num_assertions(tree, {"f"}) == count


@pytest.mark.parametrize(("answer", "blocks"), [
    ("```python\na\n```\nx\n```\nb\n```", ["a\n"]), ("```\na\n\n```  \n~~~ py\nb\n~~~", ["b\n"]),
    ("````\n```\na\n```\n````", ["```\na\n```\n"]), ("```\n```", [""]), ("```\na\n~~~\nb\n~~~", ["b\n"]),
    ("```python\na", []), ("x ```python\na\n```", []), ("```a`b\nc\n```\nd\n```", ["d\n"]),
    ("```Python title=x\na\n```", ["a\n"]),
])  # fmt: skip
def test_a_block_ends_with_the_fence_that_began_it(answer: str, blocks: list[str]) -> None:
    assert code_blocks(answer) == blocks
