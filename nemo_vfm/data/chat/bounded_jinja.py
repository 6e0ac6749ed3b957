# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs foreign jinja templates with limits on time, rounds and the size of every text that they make.

jinja2's sandbox keeps a template away from Python, not from memory and time: a text times 10^9, a text that doubles in
a loop, a macro that calls itself twice. So every operator that makes a text, every call, filter, loop and macro is
counted and measured here.
"""

import time
from collections.abc import Callable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nemo_vfm.core.errors import DataError

MOST_LETTERS = 4 << 20  #: of any text that a template makes
MOST_ROUNDS = 1 << 20  #: of loops, macros and calls in one conversation
MOST_SECONDS = 10.0
_MOST_NUMBER = 1 << 40
_MOST_ARGUMENT = 1 << 16  # a number given to a call: widths, counts, precisions
_BEGINS, _ENDS = "\U000f1a02", "\U000f1a03"  # around what the assistant generates


class TemplateTooLong(DataError):
    """A template went beyond a limit."""


class Limits:
    """What one rendering has used."""

    def __init__(self) -> None:
        self.rounds, self.end = 0, time.monotonic() + MOST_SECONDS

    def tick(self) -> None:
        """Count a round.

        Raises:
            TemplateTooLong: there were too many, or the time is over.
        """
        self.rounds += 1
        if self.rounds > MOST_ROUNDS:
            raise TemplateTooLong(
                f"the chat template went through more than {MOST_ROUNDS:,} rounds for one conversation"
            )
        if not self.rounds % 256 and time.monotonic() > self.end:
            raise TemplateTooLong(f"the chat template took longer than {MOST_SECONDS:g} s for one conversation")


def measured(value: Any) -> Any:
    """The value, if it is not too large.

    Raises:
        TemplateTooLong: it is.
    """
    if isinstance(value, str | bytes | list | tuple | dict) and len(value) > MOST_LETTERS:
        raise TemplateTooLong(f"the chat template made a text of more than {MOST_LETTERS:,} letters")
    if isinstance(value, int) and abs(value) > _MOST_NUMBER:
        raise TemplateTooLong(f"the chat template computed a number above {_MOST_NUMBER:,}")
    return value


def weighed(value: Any) -> Any:
    """The value, if all that it holds is not too much: a list of a list twice, and so on, is written out in full.

    Raises:
        TemplateTooLong: it is.
    """
    waiting, count = [value], 0
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set):
            waiting += one
        count += 1
        if max(count, len(waiting)) > MOST_ROUNDS:
            raise TemplateTooLong(f"the chat template made a list of more than {MOST_ROUNDS:,} parts")
    return value


def _require_small(arguments: tuple[Any, ...]) -> None:
    for one in arguments:
        if isinstance(one, int) and abs(one) > _MOST_ARGUMENT:
            raise TemplateTooLong(f"the chat template calls something with {one:,}, above {_MOST_ARGUMENT:,}")


def _product(left: Any, right: Any) -> Any:
    for text, count in ((left, right), (right, left)):
        if isinstance(text, str | list | tuple) and isinstance(count, int) and len(text) * count > MOST_LETTERS:
            raise TemplateTooLong(f"the chat template repeats a text {count:,} times")
    return left * right


def _power(left: Any, right: Any) -> Any:
    if abs(right) > 64 or abs(left) > _MOST_ARGUMENT:
        raise TemplateTooLong(f"the chat template computes {left} to the power of {right}")
    return left**right


def _formatted(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _require_plain_format(left)
    return left % right


def _require_plain_format(text: str) -> None:
    """A width such as %1000000000d is no number that anybody sees."""
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    if any(len(one) > 4 for one in digits) and ("%" in text or "{" in text):
        raise TemplateTooLong("the chat template formats with a width of five digits or more")


_CAREFUL: dict[str, Callable[[Any, Any], Any]] = {"*": _product, "**": _power, "%": _formatted}


class _Counting(CodeGenerator):
    """Generates code that counts rounds and measures what `~` joins."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """As jinja2's, measured."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """As jinja2's, with a count in each round."""
        node.body.insert(0, _count(node))
        super().visit_For(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """As jinja2's, of what is not too much."""
        node.expr = _weighed(node.expr)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
        super().visit_Compare(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """As jinja2's, with keys that are not too much."""
        for pair in node.items:
            pair.key = _weighed(pair.key)
        super().visit_Dict(node, frame)

    def macro_body(self, node: Any, frame: Frame) -> tuple[Frame, MacroRef]:
        """As jinja2's, with a count in each call."""
        node.body.insert(0, _count(node))
        return super().macro_body(node, frame)


def _weighed(node: nodes.Expr) -> nodes.Expr:
    if isinstance(node, nodes.Const):
        return node
    call = nodes.EnvironmentAttribute("weigh", lineno=node.lineno)
    return nodes.Call(call, [node], [], None, None, lineno=node.lineno)


def _count(node: nodes.Node) -> nodes.Node:
    return nodes.ExprStmt(nodes.EnvironmentAttribute("tick_now", lineno=node.lineno), lineno=node.lineno)


class GenerationTag(Extension):
    """`{% generation %}`, which templates put around what the assistant generates."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag's body between two marks."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{_BEGINS}{caller()}{_ENDS}"


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox with limits; one rendering at a time, after `begin`."""

    code_generator_class = _Counting
    intercepted_binops = frozenset(["+", *_CAREFUL])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
            cache_size=0,
            optimized=False,
            finalize=weighed,
        )
        for unwanted in ("lipsum", "cycler", "joiner"):
            del self.globals[unwanted]
        self.filters = {name: self.bounded(name, one) for name, one in self.filters.items()}
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: self.bounded(name, one) for name, one in tests.items()}
        self.weigh = weighed
        self.limits = Limits()

    def begin(self) -> None:
        """Forget what the last rendering used."""
        self.limits = Limits()

    @property
    def tick_now(self) -> None:
        """Counts when it is looked at, which needs no call that the sandbox would judge."""
        self.limits.tick()

    def joined(self, parts: tuple[Any, ...]) -> str:
        """`a ~ b`."""
        self.limits.tick()
        texts = [str(weighed(part)) for part in parts]
        if sum(map(len, texts)) > MOST_LETTERS:
            raise TemplateTooLong(f"the chat template made a text of more than {MOST_LETTERS:,} letters")
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """See jinja2's sandbox."""
        self.limits.tick()
        careful = _CAREFUL.get(operator)
        return measured(careful(left, right) if careful else super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """See jinja2's sandbox: its names, so that a template may name its own arguments as it likes."""
        __self.limits.tick()
        _require_small((*args, *kwargs.values()))
        weighed([one for one in (*args, *kwargs.values()) if isinstance(one, list | tuple | dict)])
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox has a `format` of its own around that of texts
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str):
            _require_sane_method(owner, name, args)
        return measured(super().call(__context, __obj, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """See jinja2's sandbox."""
        return super().getitem(obj, weighed(argument))

    def bounded(self, name: str, filtered: Callable[..., Any]) -> Callable[..., Any]:
        """A filter or a test that is counted, and whose arguments and result are measured."""

        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.limits.tick()
            _require_small((*args, *kwargs.values()))
            weighed([one for one in args if isinstance(one, list | tuple | dict)])
            own = [one for one in args if not isinstance(one, Context | nodes.EvalContext) and one is not self]
            if own and isinstance(own[0], str):
                _require_sane_method(own[0], name, tuple(own[1:]))
            if name == "join" and own:
                _require_sane_method("" if len(own) < 2 else str(own[1]), name, (own[0],))
            return measured(filtered(*args, **kwargs))

        marks = getattr(filtered, "__dict__", {})  # such as whether it takes the environment
        vars(bounded).update({key: one for key, one in marks.items() if key.startswith("jinja")})
        return bounded


def _require_sane_method(text: str, name: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what would make a huge text before it is made."""
    letters = len(text)
    if name in ("format", "format_map"):
        _require_plain_format(text)
    elif name == "replace" and len(arguments) > 1:
        old, new = map(str, arguments[:2])
        letters += (text.count(old) if old else len(text) + 1) * len(new)
    elif name == "join" and arguments:
        parts = measured(list(arguments[0]))
        letters = sum(len(one) for one in parts if isinstance(one, str)) + letters * len(parts)
    if letters > MOST_LETTERS:
        raise TemplateTooLong(f"the chat template made a text of more than {MOST_LETTERS:,} letters")


def without_generation_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A rendering without the marks of `{% generation %}`, and where each began and ended."""
    spans, begun, kept = list[tuple[int, int]](), list[int](), list[str]()
    place = 0
    for part in _parts(text):
        if part == _BEGINS:
            begun.append(place)
        elif part == _ENDS:
            if begun:
                spans.append((begun.pop(), place))
        else:
            kept.append(part)
            place += len(part)
    return "".join(kept), spans


def _parts(text: str) -> list[str]:
    return [one for half in text.split(_BEGINS) for one in (_BEGINS, *_with(half.split(_ENDS), _ENDS))][1:]


def _with(parts: list[str], between: str) -> list[str]:
    return [one for part in parts for one in (between, part)][1:]
