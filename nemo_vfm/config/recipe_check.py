"""Checks a composed recipe: reports every problem at once, or returns what to build where there is none.

The constructor is the schema: each key is an argument, and each value is checked against its annotation. A parameter
typed `Factory[...]` receives a factory instead of an object.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

from nemo_vfm.config import hints
from nemo_vfm.config.build import ARGS, PARTIAL, Call, Group, Items, Part, Value
from nemo_vfm.config.compose import mocked_data
from nemo_vfm.config.emit import text_of
from nemo_vfm.config.locate import NotLocated, Target, is_users
from nemo_vfm.config.recipe_errors import Mark, Problem, did_you_mean, printable, some_of
from nemo_vfm.config.recipe_paths import write_refusal
from nemo_vfm.config.slot_fit import choose_target, fitting_ingredients, lost_braces
from nemo_vfm.config.tree import MISSING, TARGET, Map, Node, Scalar, Seq, find, join, to_plain, walk
from nemo_vfm.config.values import BadValue, convert, key_value, require_limits, show
from nemo_vfm.core.network.permission import NOTHING, Permissions, SentMark, UserOnly
from nemo_vfm.core.recipe_keys import current_key
from nemo_vfm.core.secret import register_arguments
from nemo_vfm.core.storage.write_path import WriteMark
from nemo_vfm.core.types.job import Job

_NOTHING = Value(None)
_UNREAD = "made-up.csv"  # a path that nothing reads; a table's says by its ending what it is
_ENOUGH = 1000  # problems; a hostile recipe has as many as it has values, and nobody reads them
_HYDRA = {
    PARTIAL: "the type of the slot decides whether to build a factory",
    ARGS: "pass arguments by name",
    "_recursive_": "nested components are always built",
    "_convert_": "components receive plain values",
}

#: What a recipe once said, and the user says now.
_USERS = {
    "api_key_env": "only you decide which key a host gets, with --allow-host HOST=VARIABLE or in your endpoints file",
    "allow_private": "only you decide what inside your network may be contacted, with --allow-host or in your "
    "endpoints file",
    "permissions": "only you decide what is allowed, with --allow-host or in your endpoints file",
}


class _Enough(Exception):
    """There are so many problems that the rest need not be looked for."""


#: Sections at the root of YAML that is written for other frameworks, and of no recipe.
_FOREIGN = {"trainer", "exp_manager", "step_scheduler", "train", "optim", "dist_env", "distributed"}
_MIGRATE = "; `nemo-vfm migrate FILE` converts a YAML file of NeMo, DFM or AutoModel"


@dataclass(slots=True)
class Checker:
    """Walks a resolved tree along the annotations."""

    trust: Sequence[str]  #: which names may be used, see `locate`
    #: the ingredients there are for a slot with their classes, for suggestions
    choices: Callable[[str], Mapping[str, str]] = field(default=lambda _: {})
    permissions: Permissions = NOTHING  #: what the user allows, for the components that send or write something
    run_dir: Path | None = None  #: the run folder, in which a recipe may write; None where there is none
    #: whether the slots are of a class or function that the user trusts, which may be built of anything that is
    #: trusted, and be given what is called later
    is_loose: bool = False
    unread: tuple[str, ...] = ()  #: how the addresses of data begin whose samples are made up
    problems: list[Problem] = field(default_factory=list)
    places: "dict[str, dict[str, Mark]]" = field(default_factory=dict)  # key -> the addresses where the recipe has it

    def root(self, node: Map) -> Part:
        """The whole recipe: a Job."""
        self.unread = mocked_data(node)
        for path, below in walk(node):
            self.places.setdefault(path.rpartition(".")[2], {})[path] = below.mark
        try:
            part = self.node(node, Job, "", node.mark)
        except _Enough:
            part = _NOTHING
        found, self.problems = self.problems, []
        for problem in found:  # a missing value below a reference is asked for at the place referred to
            above = problem.path.rpartition(".")[0]
            holder = find(node, above)
            if problem.kind != "missing" or not isinstance(holder, Map) or holder.home in ("", above):
                self.problems.append(problem)
        return part

    def part(self, root: Map, address: str, given: Sequence[str]) -> Part:
        """One component of a recipe, or its root, whose job would give it these arguments."""
        node = find(root, address)
        assert node is not None
        self.unread = mocked_data(root)
        try:
            return self._component(node, object, address, by_name=tuple(given), later=True)
        except _Enough:
            return _NOTHING

    def node(self, node: Node, hint: Any, path: str, key: Mark) -> Part:
        """Judge a node by the annotation of its slot."""
        if isinstance(node, Scalar) and (node.broken or node.value == MISSING):
            return self._report_missing(node, hint, path)
        inner = hints.bare_hint(hint)
        if hints.is_union(inner):
            return self._union(node, hint, path, key)
        if hints.is_factory(inner):
            given, made = hints.factory_parts(inner)
            return self._component(node, made, path, given=given, later=True)
        if hints.is_open(inner):
            return self._open(node, hint, path)
        if self.is_loose and inner is Namespace and isinstance(node, Map) and TARGET not in node.items:
            parts = {name: self._of_anything(below, join(path, name)) for name, below in node.items.items()}
            return Call(Namespace, parts, path, key, _secrets(node), node=node)
        if hints.is_mapping(inner) or hints.is_list(inner):
            part = self._group(node, inner, path) if hints.is_mapping(inner) else self._list(node, inner, path)
            try:  # what `Annotated` says of the whole, such as how many values it holds
                require_limits(to_plain(node), hint)
            except BadValue as error:
                return self._say(path, node.mark, str(error))
            return part
        if hints.is_component(inner):
            return self._component(node, inner, path)
        return self._value(node, hint, path)  # with what `Annotated` says of the value

    def _say(self, path: str, mark: Mark, message: str) -> Part:
        self.problems.append(Problem(path, mark, message))
        if len(self.problems) >= _ENOUGH:
            raise _Enough
        return _NOTHING

    def _report_missing(self, node: Scalar, hint: Any, path: str) -> Part:
        """A value that is a reference to a missing one is not asked for by itself: what it refers to is.

        Nor is a path of data whose samples are made up.
        """
        if not node.broken and path.startswith(self.unread) and "a path" in hints.in_words(hint):
            return Value(convert(replace(node, value=_UNREAD), hint))
        if not node.broken and not node.via:
            wanted = hints.in_words(hint)
            text = f"you must set this: {path}={'DIR' if 'a path' in wanted else 'VALUE'} ({wanted})"
            self.problems.append(Problem(path, node.mark, text, kind="missing"))
        return _NOTHING

    def _value(self, node: Node, hint: Any, path: str) -> Part:
        if not isinstance(node, Scalar):
            return self._say(path, node.mark, f"expected {hints.in_words(hint)}, got {_kind(node)}")
        if self._is_withheld(node, hint, path):
            return _NOTHING
        try:
            value = convert(node, hint)
        except BadValue as error:
            return self._say(path, node.mark, str(error))
        notes = hints.notes(hint)
        if UserOnly(value) in notes and not node.is_typed_here:
            text = text_of(node.value)
            return self._say(path, node.mark, f"a recipe cannot disable this protection with {text}; if you mean it, "
                             f"give it on the command line: {path}={text}")  # fmt: skip
        is_written = any(isinstance(note, WriteMark) for note in notes)
        if is_written and (refusal := write_refusal(node, path, self.run_dir, self.permissions)):
            return self._say(path, node.mark, refusal)
        return Value(value, node)

    def _is_withheld(self, node: Scalar, hint: Any, path: str) -> bool:
        """Whether a text that is sent takes something from the environment; if so, that is said."""
        if not node.secret or not any(isinstance(note, SentMark) for note in hints.notes(hint)):
            return False
        self._say(path, node.mark, f"this text is sent over the network, so it must not use the environment, "
                  f"but it is {printable(node.via, 60)!r}; write the value")  # fmt: skip
        return True

    def _open(self, node: Node, hint: Any, path: str) -> Part:
        """A slot that says nothing about its type, as of third-party classes: plain values, and components only where
        the user trusts the class."""
        for below, part in walk(node, path):
            if isinstance(part, Scalar) and self._is_withheld(part, hint, below):
                return _NOTHING
            if isinstance(part, Map) and TARGET in part.items and not self.is_loose:
                text = "this parameter has no type, so it takes no component"
                return self._say(below, part.key_mark(TARGET), text)
        return self._of_anything(node, path)

    def _of_anything(self, node: Node, path: str) -> Part:
        if isinstance(node, Map) and TARGET in node.items:
            return self._component(node, hints.ANYTHING, path)
        if isinstance(node, Map):
            return Group({key: self._of_anything(below, join(path, key)) for key, below in node.items.items()})
        if isinstance(node, Seq):
            parts = (self._of_anything(below, join(path, str(i))) for i, below in enumerate(node.items))
            return Items(tuple(parts), list)
        return Value(node.value)

    def _union(self, node: Node, hint: Any, path: str, key: Mark) -> Part:
        options = [option for option in hints.options(hint) if hints.bare_hint(option) is not type(None)]
        if isinstance(node, Scalar) and node.value is None and len(options) < len(hints.options(hint)):
            return _NOTHING
        if len(options) == 1:
            return self.node(node, options[0], path, key)
        trials = []
        for option in options:  # one after the other: unions below unions would make trying all of them exponential
            trial = replace(self, problems=[])
            try:
                part = trial.node(node, option, path, key)
            except _Enough:
                self.problems += trial.problems
                raise
            if all(problem.kind == "missing" for problem in trial.problems):
                self.problems += trial.problems
                return part
            trials.append(trial)
            is_class = isinstance(node, Map) and TARGET in node.items
            if is_class and any(len(problem.path) > len(path) for problem in trial.problems):
                break  # the class fits this option, only its arguments are wrong
        if isinstance(node, Map):  # for a component, the trial that came furthest has the useful messages
            self.problems += max(trials, key=lambda trial: max(len(p.path) for p in trial.problems)).problems
            return _NOTHING
        is_open = isinstance(node, Scalar) and not node.secret
        reports = [
            p for trial in trials for p in trial.problems if not p.message.startswith(("expected", "a recipe cannot "))
        ]
        if reports:  # such as what is wrong with a path, rather than that this is none
            self.problems.append(reports[0])
            return _NOTHING
        near = did_you_mean(str(node.value), hints.choices(hint)) if is_open and isinstance(node, Scalar) else ""
        if any(hints.is_mapping(one) for one in get_args(hint)):
            near = near or _braces(node, path)
        return self._say(path, node.mark, f"expected {hints.in_words(hint)}, got {_kind(node)}{near}")

    def _group(self, node: Node, hint: Any, path: str) -> Part:
        if not isinstance(node, Map):
            text = f"expected {hints.in_words(hint)}, got {_kind(node)}{_braces(node, path)}"
            return self._say(path, node.mark, text)
        if TARGET in node.items:
            text = f"expected {hints.in_words(hint)}; {TARGET} makes this a single component; put it under a name"
            return self._say(path, node.key_mark(TARGET), text)
        of_keys, of_values = get_args(hint) if len(get_args(hint)) == 2 else (str, hints.ANYTHING)
        parts: dict[Any, Part] = {}
        for key, below in node.items.items():
            try:
                value = key_value(key, of_keys, node.key_mark(key))
                if value in parts:  # 1_000 and 1000 are two keys in YAML, and one number
                    raise BadValue(f"{value} appears twice, here as {key}")
                parts[value] = self.node(below, of_values, join(path, key), node.key_mark(key))
            except BadValue as error:
                self._say(join(path, key), node.key_mark(key), str(error))
        return Group(parts)

    def _list(self, node: Node, hint: Any, path: str) -> Part:
        if not isinstance(node, Seq):
            return self._say(path, node.mark, f"expected {hints.in_words(hint)}, got {_kind(node)}; write [ ... ]")
        inner = get_args(hint)
        fixed = hints.is_fixed(hint)
        if fixed and len(inner) != len(node.items):
            return self._say(path, node.mark, f"expected {hints.in_words(hint)}, got {len(node.items)} values")
        wanted = inner if fixed else (inner[0] if inner else hints.ANYTHING,) * len(node.items)
        numbered = enumerate(zip(node.items, wanted, strict=True))
        origin = get_origin(hint) or hint
        concrete: dict[Any, Callable[[Sequence[object]], object]] = {list: list, set: set, frozenset: frozenset}
        return Items(
            tuple(self.node(v, w, join(path, str(i)), v.mark) for i, (v, w) in numbered), concrete.get(origin, tuple)
        )

    def _component(
        self, node: Node, hint: Any, path: str, *, given: tuple[Any, ...] | None = (), by_name: tuple[str, ...] = (),
        later: bool = False,
    ) -> Part:  # fmt: skip
        if not isinstance(node, Map):
            slot = path.rpartition(".")[2]
            known = fitting_ingredients(self.choices(slot), hint, self.trust) if slot else []
            near = did_you_mean(str(node.value), known) if isinstance(node, Scalar) and not node.secret else ""
            there = f"; conf/{slot} holds {some_of(known)}{near}" if known else ""
            text = f"expected {hints.in_words(hint)} (a mapping with {TARGET}), got {_kind(node)}{there}"
            return self._say(path, node.mark, text)
        is_partial = False
        if self.is_loose and not later and PARTIAL in node.items:
            said = self.node(node.items[PARTIAL], bool, join(path, PARTIAL), node.key_mark(PARTIAL))
            is_partial, node = said == Value(True), node.without(PARTIAL)
        target = self._target(node, hint, path, is_partial=is_partial)
        if target is None:
            return _NOTHING
        try:
            signature = hints.signature(target)
        except TypeError as error:
            return self._say(path, node.key_mark(TARGET), str(error))
        positional = by_name
        if later and not by_name:
            names = tuple(argument.name for argument in signature.arguments.values() if argument.positional)
            if given is not None and len(given) > len(names) and not signature.takes_more:
                text = f"{target.__qualname__} takes {len(names)} positional arguments, but this slot passes"
                self._say(path, node.key_mark(TARGET), f"{text} {len(given)}")
            positional = names if given is None else names[: len(given)]
        return self._arguments(node, target, signature, path, positional=positional, later=later, is_partial=is_partial)

    def _target(self, node: Map, hint: Any, path: str, *, is_partial: bool) -> Target | None:
        written = node.items.get(TARGET)
        if isinstance(written, Scalar) and (written.broken or written.value == MISSING):
            self._report_missing(written, str, join(path, TARGET))
            return None
        is_callable = (get_origin(hint) or hint) in (Callable, partial)
        made = (hints.ANYTHING, *get_args(hint))[-1] if is_callable and is_partial else hint
        try:
            return choose_target(written, made, self.trust, is_root=not path, is_partial=is_partial)
        except (NotLocated, TypeError) as error:
            advice = "" if path or not _FOREIGN & node.items.keys() else _MIGRATE
            advice = f"; with {PARTIAL}: true it is called later" if is_callable and self.is_loose else advice
            self._say(path, node.mark if written is None else node.key_mark(TARGET), f"{error}{advice}")
            return None

    def _arguments(
        self, node: Map, target: Target, signature: hints.Signature, path: str, *, positional: tuple[str, ...],
        later: bool, is_partial: bool,
    ) -> Part:  # fmt: skip
        parts: dict[str, Part] = {}
        is_loose = is_users(target, node.target() or f"{target.__module__}.{target.__qualname__}", self.trust)
        own = replace(self, is_loose=is_loose)
        written = node.without(TARGET)
        if is_loose and ARGS in written.items:
            parts[ARGS], by_position = own._by_position(written, target, signature, path, len(positional))
            positional, written = (*positional, *by_position), written.without(ARGS)
        for key, below in written.items.items():
            address, mark = join(path, key), node.key_mark(key)
            argument = signature.arguments.get(key)
            if key in positional:
                who = f"by {ARGS}" if ARGS in parts else "by the job"
                self._say(address, mark, f"{key} is passed to {target.__qualname__} {who}; remove it here")
            elif argument is not None:
                parts[key] = own.node(below, argument.hint, address, mark)
            elif signature.open and key not in _HYDRA:
                parts[key] = own._open(below, hints.ANYTHING, address)
            else:
                register_arguments([f"{key}={below.value}"] if isinstance(below, Scalar) else [])
                self._report_unknown(key, target, signature, address, mark)
        if not is_partial:
            lacking = [a for a in signature.arguments.values()
                       if a.required and a.name not in node.items and a.name not in positional]  # fmt: skip
            if lacking:
                names = " and ".join(f"{a.name} ({hints.in_words(a.hint)})" for a in lacking)
                self._say(path, node.key_mark(TARGET), f"{target.__qualname__} needs {names}")
        parts |= dict.fromkeys(signature.permitted, Value(self.permissions))
        mark = node.key_mark(TARGET)
        return Call(target, parts, path, mark, _secrets(node), later, node, is_partial)

    def _by_position(
        self, node: Map, target: Target, signature: hints.Signature, path: str, num_given: int
    ) -> tuple[Part, list[str]]:
        """The arguments of `_args_`, which stand behind those that a job gives, and the names that they fill."""
        written, address = node.items[ARGS], join(path, ARGS)
        if not isinstance(written, Seq):
            return self._say(address, node.key_mark(ARGS), f"expected a list, got {_kind(written)}"), []
        takes = [argument for argument in signature.arguments.values() if argument.positional][num_given:]
        if len(written.items) > len(takes) and not signature.takes_more:
            text = f"{target.__qualname__} takes at most {len(takes)} positional arguments, got {len(written.items)}"
            return self._say(address, node.key_mark(ARGS), text), []
        wanted = [argument.hint for argument in takes] + [hints.ANYTHING] * len(written.items)
        numbered = enumerate(zip(written.items, wanted, strict=False))
        parts = tuple(self.node(below, hint, join(address, str(i)), below.mark) for i, (below, hint) in numbered)
        return Items(parts, tuple), [argument.name for argument in takes[: len(parts)]]

    def _report_unknown(self, key: str, target: Target, signature: hints.Signature, path: str, mark: Mark) -> None:
        takes = list(signature.arguments)
        refused: Mapping[str, str] = getattr(target, "REFUSED_ARGUMENTS", {})  # what a class knows and does not take
        hints_by_key = _HYDRA | (_USERS if signature.permitted else {})
        hint = f"; {hints_by_key[key]}, remove it" if key in hints_by_key else did_you_mean(key, takes)
        hint = f"; {refused[key]}" if key in refused else hint
        moved = current_key(f"{target.__module__}.{target.__qualname__}", key)
        if moved and moved.partition(".")[0] in takes:
            hint = f"; it is now {join(path.rpartition('.')[0], moved)}"
        known = self.places.get(key, {})  # what came through ${...} is the same place
        others = [other for other, at in known.items() if other != path and at != known.get(path)]
        if others and not hint:
            hint = f"; this recipe has {' and '.join(others[:2])}"
        if key == "defaults":
            hint = "; put defaults at the top of a file, as {a.b: choice}"
        if "." in key and key.partition(".")[0] in takes:
            nested = key.replace(".", ": {") + ": ..." + "}" * key.count(".")
            hint = f"; dots work only on the command line; here, write {nested}"
        listed = f"; it takes {', '.join(takes)}" if takes and not hint else ""
        self._say(path, mark, f"{target.__qualname__} takes no argument {key}{hint}{listed}")


def _braces(node: Node, path: str) -> str:
    """What to type where a shell may have taken the braces of a mapping; a file's are as they were written."""
    is_typed = isinstance(node, Scalar) and not node.secret and not node.mark.source.is_file
    return lost_braces(path, str(to_plain(node))) if is_typed else ""


def _kind(node: Node) -> str:
    if isinstance(node, Scalar):
        return show(node)
    return "a list" if isinstance(node, Seq) else "a mapping"


def _secrets(node: Map) -> tuple[str, ...]:
    return tuple(str(below.value) for _, below in walk(node) if isinstance(below, Scalar) and below.secret)
