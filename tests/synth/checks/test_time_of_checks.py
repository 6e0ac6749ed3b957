"""Tests that every check of a text takes a time in proportion to it, whatever a model wrote."""

import importlib
import inspect
import pkgutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from nemo_vfm.synth import checks
from nemo_vfm.synth.checks.call_schema import check_call, check_tools
from nemo_vfm.synth.programs.judgement import says_yes, scores_of, verdict_of
from nemo_vfm.synth.programs.list_questions import items_of

_LETTERS, _CPU_S = 100_000, 10  # about a second is usual; in proportion to the square it would be minutes
#: Modules that run in the child, or run a program.
_NOT_OF_TEXTS = {"child_start", "kernel_limits", "limited_child", "program_model"}
_PIECES = (
    "a", " ", "\n", "\n ", ".", "(.", "a. ", "*a ", "**", "***\n", "- ", "`", "```\n", "```\na\n````\n", "~~~\n", "~",
    "_", "_:", "a_", '"a ', '"a" ', "\u201ea", "\u00ab", ">a\n", "[(", "[...", "- -", "a,\n", "a,\nb\n", '"a,', "1,",
    "1 /", "#### ", "answer is ", "answer", "\\boxed ", "^ ", "^{ ", "\u221a(", "\\text{a", "[[", '{"a":', "<<", "P. ",
    "x=", "A ", "1)\n", "1) ", "def f(): pass\n",
)  # fmt: skip


def texts() -> Iterator[str]:
    for piece in _PIECES:
        long = piece * (_LETTERS // len(piece))
        yield from (f"x{long}x", f"answer is{long}\nx", f"```\n{long}\n")
    yield "".join(f'"{a}{b}{c}" ' for a in map(chr, range(97, 123)) for b in "xyzu" for c in map(chr, range(97, 123)))
    yield "\n".join("`" * (3 + n % 600) for n in range(700))


def of_this_room() -> dict[str, Callable[[str], object]]:
    """Every public function whose first argument is a text; a word or a marker that it looks for is ours, and short."""
    found = {}
    for module in pkgutil.iter_modules(checks.__path__):
        if module.name in _NOT_OF_TEXTS:
            continue
        for name, function in vars(importlib.import_module(f"{checks.__name__}.{module.name}")).items():
            if inspect.isfunction(function) and not name.startswith("_") and module.name in function.__module__:
                needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
                if needed[0].annotation is str:
                    found[f"{module.name}.{name}"] = _filled(function, needed)
    return found


def _filled(function: Callable[..., object], needed: list[inspect.Parameter]) -> Callable[[str], object]:
    kinds: dict[type, Callable[[str], object]] = {str: lambda text: text, int: lambda text: 1}
    return lambda text: function(
        *("a b" if one.name in ("word", "marker") else kinds[one.annotation](text) for one in needed)
    )


def many_names(text: str) -> None:
    """Not a long text but a long list of names."""
    names = ",".join(f'"{n}":{n}' for n in range(11_000))
    check_call({"name": "f", "arguments": f"{{{names}}}"}, [{"function": {"name": "f"}}])
    check_tools([{"type": "function", "function": {"name": f"f{n}"}} for n in range(20_000)])


CHECKS: dict[str, Callable[[str], object]] = {
    **of_this_room(), "items_of": lambda text: items_of(text, 100), "scores_of": scores_of,
    "verdict_of": verdict_of, "says_yes": says_yes,
}  # fmt: skip


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Of the processor's time: a machine that does much else changes nothing."""

    def stop(*_: Any) -> None:
        raise AssertionError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_the_room_has_checks() -> None:
    assert len(of_this_room()) > 20 and "python_code.code_blocks" in CHECKS and "answer_data.table_in" in CHECKS


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_no_text_takes_a_time_out_of_proportion(name: str) -> None:
    for text in texts():
        with limited(_CPU_S):
            try:
                CHECKS[name](text)
            except AssertionError:
                raise AssertionError(f"{name} takes more than {_CPU_S} s for {text[:40]!r}...") from None
            except Exception:  # what a check says about nonsense is tested elsewhere
                continue


#: Texts for which a check once took from seconds to hours.
WORST: dict[str, tuple[Callable[[str], object], str]] = {
    "fences": (CHECKS["python_code.code_blocks"], "```x\n" * 80_000),
    "table": (CHECKS["answer_data.table_in"], "a,\nb\n" * 80_000),
    "first word": (CHECKS["answer_measures.first_word"], "a" + "." * 200_000 + "a"),
    "answer is": (CHECKS["final_answer.final_answer"], "answer is" + " " * 200_000 + "\nx"),
    "lists": (CHECKS["items_of"], "\n" * 200_000 + "x"),
    "scores": (CHECKS["scores_of"], "_" * 100_000),
    "quotations": (CHECKS["citations.missing_quotations"], '"a" ' * 20_000 + "a" * 100_000 + ' "b b" "zz" ' * 20_000),
    "names": (many_names, ""),
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_text_of_each_check_takes_seconds_at_most(name: str) -> None:
    check, text = WORST[name]
    with limited(_CPU_S), suppress(ValueError):
        check(text)
