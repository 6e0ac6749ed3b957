"""Runs foreign jinja templates with limits on time, rounds, the size of every text that they make, and all of it.

jinja2's sandbox keeps a template away from Python, not from memory and time: a text times 10^9, a text that doubles in
a loop, a macro that calls itself twice. So every operator that makes a text or a list, every output, call, filter, loop
and macro is counted here, and weighed before it is done (`template_limits`).
"""

import re
import threading
from collections.abc import Callable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef, operators
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nemo_vfm.data.chat import template_limits
from nemo_vfm.data.chat.template_limits import (
    FILTERS,
    MAX_FOR_SLOW,
    METHODS,
    SLOW_FILTERS,
    RenderingUse,
    TemplateTooLong,
    materialise,
    require_letters,
    require_small,
    weight,
)

_BEGINS, _ENDS = "\U000f1a02", "\U000f1a03"  # around what the assistant generates
_PLAIN = (str, bytes, int, float, list, tuple, dict, range, type)  # what Python itself has methods for
_CAREFUL: dict[str, Callable[[Any, Any], Any]] = {
    "*": template_limits.product, "**": template_limits.power, "%": template_limits.format_percent,
}  # fmt: skip


class _CountingGenerator(CodeGenerator):
    """Generates code that counts rounds, and weighs what is written, joined, cut and listed."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """As jinja2's, measured."""
        self.write("environment.join_parts((")
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
        self.write("(")
        self._through("weigh", node.expr, frame)
        for operand in node.ops:
            self.write(f" {operators[operand.op]} ")
            self._through("weigh", operand.expr, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """As jinja2's; a slice is a copy."""
        self._write_kept(super().visit_Getitem, node, frame, isinstance(node.arg, nodes.Slice))

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """As jinja2's, counted."""
        self._write_kept(super().visit_List, node, frame, True)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """As jinja2's, counted; one that names are unpacked into is none."""
        self._write_kept(super().visit_Tuple, node, frame, node.ctx == "load")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """As jinja2's, counted, with keys that are not too much."""
        self.write("environment.keep({")
        for pair in node.items:
            self._through("weigh", pair.key, frame)
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("})")

    def macro_body(self, node: Any, frame: Frame) -> tuple[Frame, MacroRef]:
        """As jinja2's, with a count in each call."""
        node.body.insert(0, _count(node))
        return super().macro_body(node, frame)

    def _write_kept(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame, counts: bool) -> None:
        self.write("environment.keep(" if counts else "")
        visit(node, frame)
        self.write(")" if counts else "")

    def _through(self, method: str, node: nodes.Expr, frame: Frame) -> None:
        self.write(f"environment.{method}(")
        self.visit(node, frame)
        self.write(")")

    def _output_const_repr(self, group: Any) -> str:
        return f"environment.keep({super()._output_const_repr(group)})"


def _count(node: nodes.Node) -> nodes.Node:
    return nodes.ExprStmt(nodes.EnvironmentAttribute("tick_now", lineno=node.lineno), lineno=node.lineno)


class GenerationTag(Extension):
    """`{% generation %}`, which templates put around what the assistant generates."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag's body between two marks."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        return f"{_BEGINS}{caller()}{_ENDS}"


class _OfThread(threading.local):
    """What the rendering of each thread has used."""

    def __init__(self) -> None:
        self.limits = RenderingUse()


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox with limits; one rendering at a time in each thread, after `begin`."""

    code_generator_class = _CountingGenerator
    intercepted_binops = frozenset(["+", *_CAREFUL])

    def __init__(self) -> None:
        self._own = _OfThread()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
            cache_size=0,
            optimized=False,
            finalize=self.render_value,
        )
        for unwanted in ("lipsum", "cycler", "joiner"):
            del self.globals[unwanted]
        self.filters = {name: self.bound_filter(name, one) for name, one in self.filters.items()}
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: self.bound_filter("", one) for name, one in tests.items()}

    def begin(self) -> None:
        """Forget what the last rendering of this thread used."""
        self._own.limits = RenderingUse()

    @property
    def tick_now(self) -> None:
        """Counts when it is looked at, which needs no call that the sandbox would judge."""
        self._own.limits.tick()

    def keep(self, value: Any) -> Any:
        """A text or a list that was just made."""
        return self._own.limits.keep(value)

    def weigh(self, value: Any) -> Any:
        """A value that is not too much to be compared, hashed or written."""
        self._own.limits.tick(weight(value))
        return value

    def render_value(self, value: Any) -> Any:
        """`{{ value }}`, as text."""
        if isinstance(value, str):  # also one that is marked as safe
            return self._own.limits.keep(value)
        return self._own.limits.keep(str(self.weigh(value)))

    def join_parts(self, parts: tuple[Any, ...]) -> str:
        """`a ~ b`."""
        self._own.limits.tick()
        require_letters(sum(map(weight, parts)))
        return str(self.keep("".join(map(str, parts))))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """See jinja2's sandbox."""
        self._own.limits.tick(weight(left) + weight(right))
        careful = _CAREFUL.get(operator)
        return self.keep(careful(left, right) if careful else super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """See jinja2's sandbox: its names, so that a template may name its own arguments as it likes."""
        hidden = {name: kwargs.pop(name) for name in ("_loop_vars", "_block_vars") if name in kwargs}  # of jinja2
        args = __self._looked_at(args, kwargs)
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox has a `format` of its own around that of texts
        owner = getattr(method, "__self__", None)
        if isinstance(owner, _PLAIN):
            name = getattr(method, "__name__", "")
            if name not in METHODS or isinstance(owner, bytes | int | float | type):
                raise TemplateTooLong(f"the chat template calls {name[:40]}, whose result may be too large")
            __self.weigh(owner)
            if isinstance(owner, str) and (foretell := METHODS[name]):
                require_letters(foretell(owner, *args, **kwargs))
        return __self.keep(super().call(__context, __obj, *args, **kwargs, **hidden))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """See jinja2's sandbox."""
        self._own.limits.tick(weight(argument))
        return super().getitem(obj, argument)

    def bound_filter(self, name: str, filtered: Callable[..., Any]) -> Callable[..., Any]:
        """A filter, or a test without a name, that is counted, and whose arguments and result are weighed."""
        foretell = FILTERS.get(name)
        marks = {key: one for key, one in getattr(filtered, "__dict__", {}).items() if key.startswith("jinja")}
        first = int(bool(marks))  # such as whether it takes the environment

        def bound(*args: Any, **kwargs: Any) -> Any:
            own = self._looked_at(args[first:], kwargs)
            if foretell is not None:
                require_letters(foretell(*own, **kwargs))
            if name in SLOW_FILTERS and sum(map(weight, own)) > MAX_FOR_SLOW:
                raise TemplateTooLong(f"the chat template gives {name} a text of more than {MAX_FOR_SLOW:,} characters")
            return self.keep(filtered(*args[:first], *own, **kwargs))

        vars(bound).update(marks)
        return bound

    def _looked_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments that are neither too large nor used up."""
        args = tuple(map(materialise, args))
        kwargs.update({name: materialise(one) for name, one in kwargs.items()})
        require_small((*args, *kwargs.values()))
        self._own.limits.tick(sum(map(weight, args)) + sum(map(weight, kwargs.values())))
        return args


def without_generation_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A rendering without the marks of `{% generation %}`, and where each began and ended."""
    spans, begun, kept = list[tuple[int, int]](), list[int](), list[str]()
    place = 0
    for part in filter(None, re.split(f"({re.escape(_BEGINS)}|{re.escape(_ENDS)})", text)):
        if part == _BEGINS:
            begun.append(place)
        elif part == _ENDS:
            if begun:
                spans.append((begun.pop(), place))
        else:
            kept.append(part)
            place += len(part)
    return "".join(kept), spans
