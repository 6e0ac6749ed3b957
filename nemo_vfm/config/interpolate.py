"""Replaces `${a.b}` and `${env:NAME}` in a composed tree with their values.

Only two forms exist: an address from the root, and an environment variable. `${oc.env:NAME}` is the same, for OmegaConf
users. Nothing is computed, and nothing else on the machine is read. `$${` stands for `${` as text.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from nemo_vfm.config.recipe_errors import Mark, Problem, RecipeError, did_you_mean
from nemo_vfm.config.tree import MISSING, Map, Node, Scalar, Seq, child, join, map_scalars
from nemo_vfm.core.secret import register

MAX_NODES = 50_000
MAX_TEXT = 1 << 16
MAX_CHAIN = 30
MAX_PROBLEMS = 1000  # nobody reads as many
MAX_DEPTH = 50  # of the tree that comes out: what walks it later recurses
SHARED = frozenset({"input", "run_dir", "seed"})  #: root keys that a recipe inside a recipe takes from the outer one

_NAME = r"[A-Za-z0-9_][\w-]*"
FORM = re.compile(rf"\$\{{(?:(?P<env>(?:oc\.)?env:)(?P<variable>[A-Za-z_]\w*)|(?P<path>{_NAME}(?:\.{_NAME})*))\}}")
#: A literal dollar while references are followed: no text of a recipe or of the environment holds a NUL.
_DOLLAR = "\0"


def has_interpolation(text: object) -> bool:
    """Whether a value holds one, or a `$${`."""
    return isinstance(text, str) and "${" in text


def replace_forms(text: str, replacement: Callable[[re.Match[str]], str]) -> str:
    """The text with each reference replaced; a literal `$${...}` stays."""
    return FORM.sub(replacement, text.replace("$${", f"{_DOLLAR}{{")).replace(_DOLLAR, "$$")


def reroot(node: Node, prefix: str) -> Node:
    """A recipe's tree made ready to stand at `prefix` of another: its own addresses get the prefix."""

    def move(match: re.Match[str]) -> str:
        path = match["path"]
        return match[0] if path is None or path.split(".")[0] in SHARED else f"${{{prefix}.{path}}}"

    return map_scalars(node, lambda one: replace(one, value=replace_forms(str(one.value), move))
                       if has_interpolation(one.value) else one)  # fmt: skip


def resolve(root: Map, *, keep_env: bool = False, keep: frozenset[str] = frozenset()) -> tuple[Map, list[Problem]]:
    """Replace every interpolation.

    Args:
        keep_env: leave `${env:...}` as text: what is written to disk holds no secrets.
        keep: root keys whose interpolations stay as text too.

    Returns:
        The tree, with broken places marked so that they cause no second message, and what is wrong.
    """
    resolver = _Resolver(root, keep_env, keep)
    tree = resolver.resolve(root, "")
    assert isinstance(tree, Map)
    return tree, resolver.problems


def resolve_at(root: Map, key: str) -> Node:
    """What `resolve` would put at a root key, without a look at the others."""
    return _Resolver(root, keep_env=False, keep=frozenset()).resolve(root.items[key], key)


def _other(text: str) -> str:
    """What people who come from OmegaConf probably want."""
    if re.search(r"\$\{(?:oc\.)?env:\w+,", text):
        return "; defaults after a comma are not supported; export the variable or write the value"
    if "${now:" in text:
        return "; manifest.json records the time of a run; set another folder with run_dir=..."
    return "; recipes cannot compute values" if re.search(r"\$\{[\w.]+:", text) else "; write $${ for a literal ${"


def _with_dollars(node: Scalar, dollar: str) -> Scalar:
    if not isinstance(node.value, str):
        return node
    pieces = tuple((text.replace(_DOLLAR, dollar), origin) for text, origin in node.pieces)
    return replace(node, value=node.value.replace(_DOLLAR, dollar), pieces=pieces)


class _BrokenReference(Exception):
    """The interpolation has been reported."""


@dataclass(slots=True)
class _Resolver:
    root: Map
    keep_env: bool
    keep: frozenset[str]
    problems: list[Problem] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)  # addresses being resolved, to see loops
    _count: int = 0
    _depth: int = 0
    _said: set[tuple[str, str]] = field(default_factory=set)
    _has_literal: bool = False  # whether a `$${` was seen

    def resolve(self, node: Node, path: str) -> Node:
        """`node` without interpolations, and with literal dollars as whoever gets it reads them."""
        found, dollar = self.node(node, path), "$$" if self.keep_env else "$"
        return map_scalars(found, lambda one: _with_dollars(one, dollar)) if self._has_literal else found

    def node(self, node: Node, path: str) -> Node:
        """`node` without interpolations."""
        self._count += 1
        if self._count > MAX_NODES:
            raise RecipeError([Problem(path, node.mark, f"${{...}} becomes more than {MAX_NODES} values; use fewer")])
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH + 1:
                raise RecipeError([Problem(path, node.mark, f"values are nested more than {MAX_DEPTH} levels deep")])
            if isinstance(node, Map):
                with_path = {key: self.node(below, join(path, key)) for key, below in node.items.items()}
                return replace(node, items=with_path, home=node.home or path)
            if isinstance(node, Seq):
                items = (self.node(below, join(path, str(i))) for i, below in enumerate(node.items))
                return replace(node, items=tuple(items))
            return self._scalar(node, path) if has_interpolation(node.value) else node
        finally:
            self._depth -= 1

    def _scalar(self, node: Scalar, path: str) -> Node:
        text = str(node.value).replace("$${", f"{_DOLLAR}{{")
        self._has_literal = self._has_literal or _DOLLAR in text
        try:
            if (match := FORM.fullmatch(text)) and match["path"] and match["path"].split(".")[0] not in self.keep:
                found = self._follow(match["path"], node.mark, path)
                if not isinstance(found, Scalar):
                    return found
                return replace(found, mark=node.mark, via=text, pieces=found.origins())
            if "${" in FORM.sub("", text):
                self._fail(f"{node.value!r} is not ${{a.b}} or ${{env:NAME}}, the only two forms{_other(text)}",
                           node.mark, path)  # fmt: skip
            pieces: list[tuple[str, str]] = []
            for piece in self._pieces(text, node, path):
                if piece[0] == MISSING:
                    return replace(node, value=MISSING, via=str(node.value))
                pieces += [piece] if piece[0] or piece[1].startswith("env:") else []
            # As the kept text has it: there `$` before `${env:A}` would be read anew as a literal, and "${a}{b}" as
            # ${b}.
            shown = "".join("{" if origin.startswith("env:") else part for part, origin in pieces)
            if not self.keep_env and "${" in shown:
                self._fail("this text would turn into a reference; write the value itself", node.mark, path)
            if sum(len(part) for part, _ in pieces) > MAX_TEXT:
                self._fail(f"this text expands to more than {MAX_TEXT} characters", node.mark, path)
            value, secret = "".join(part for part, _ in pieces), any(origin.startswith("env:") for _, origin in pieces)
            return replace(node, value=value, via=str(node.value), secret=secret, pieces=tuple(pieces))
        except _BrokenReference:
            return replace(node, broken=True)

    def _pieces(self, text: str, node: Scalar, path: str) -> Iterator[tuple[str, str]]:
        """The pieces of a text, each with who gave it; see `Scalar.pieces`."""
        end, mark = 0, node.mark
        ((_, own),) = node.origins()
        for match in FORM.finditer(text):
            yield text[end : match.start()], own
            end = match.end()
            if match["env"] and not self.keep_env:
                name = match["variable"]
                value = os.environ.get(name)
                if value is None:
                    self._fail(f"the environment variable {name} is not set; export it first", mark, path)
                register(str(value))
                yield str(value), f"env:{name}"
            elif match["env"] or match["path"].split(".")[0] in self.keep:
                yield match[0], own
            else:
                found = self._follow(match["path"], mark, path)
                if not isinstance(found, Scalar) or found.value is None:
                    self._fail(f"{match[0]} is not a single value, so it cannot be part of a text", mark, path)
                assert isinstance(found, Scalar)
                if isinstance(found.value, str):
                    yield from found.origins()
                else:
                    shown = str(found.value).lower() if isinstance(found.value, bool) else str(found.value)
                    yield shown, found.origins()[0][1]
        yield text[end:], own

    def _follow(self, name: str, mark: Mark, path: str) -> Node:
        """The resolved node that `${name}` stands for."""
        if name in self._open or name == path:
            loop = [*self._open[self._open.index(name) :], name] if name in self._open else [path, name]
            self._fail(f"this refers to itself: {' -> '.join(loop)}", mark, path)
        if len(self._open) >= MAX_CHAIN:
            self._fail(f"{MAX_CHAIN} references form a chain; refer to the value directly", mark, path)
        self._open.append(name)
        try:
            node: Node = self.root
            walked = ""
            for part in name.split("."):
                if isinstance(node, Scalar) and has_interpolation(node.value):
                    node = self._follow(walked, mark, path)
                below = child(node, part)
                if below is None:
                    known = (join(walked, key) for key in (node.items if isinstance(node, Map) else ()))
                    wanted = join(walked, part)
                    self._fail(f"${{{name}}}: there is no {wanted}{did_you_mean(wanted, known)}", mark, path)
                assert below is not None
                node, walked = below, join(walked, part)
            found = self.node(node, name)
        finally:
            self._open.pop()
        if isinstance(found, Scalar) and found.broken:
            raise _BrokenReference
        return found

    def _fail(self, message: str, mark: Mark, path: str) -> None:
        # A value that is used in several places is resolved several times, and is wrong once.
        place = f"{mark.source.name}:{mark.line}:{mark.column}"
        if (place, message) not in self._said:
            self._said.add((place, message))
            self.problems.append(Problem(path, mark, message))
        if len(self.problems) >= MAX_PROBLEMS:
            raise RecipeError(self.problems)
        raise _BrokenReference
