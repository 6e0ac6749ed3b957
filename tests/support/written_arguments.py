"""Finds the arguments of constructors from which our own code derives a path that it writes, by following syntax trees.

A path is followed through variables, attributes, properties, `/` and the usual methods of `Path`, and through calls of
our functions, methods and classes. What objects of other classes do with it, and what containers hold, is not seen.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from tests.support.repository import dotted

#: Methods of `Path` that change what it names, and functions by the places of the arguments that they change.
METHODS = frozenset({"write_text", "write_bytes", "mkdir", "touch", "unlink", "rmdir", "rename", "symlink_to",
                     "hardlink_to", "chmod"})  # fmt: skip
FUNCTIONS: dict[str, tuple[int, ...]] = {
    "os.replace": (0, 1), "os.rename": (0, 1), "os.remove": (0,), "os.unlink": (0,), "os.makedirs": (0,),
    "os.mkdir": (0,), "os.link": (1,), "os.symlink": (1,), "os.truncate": (0,), "os.rmdir": (0,), "os.mkfifo": (0,),
    "shutil.rmtree": (0,), "shutil.move": (0, 1), "shutil.copyfile": (1,), "shutil.copytree": (1,), "shutil.copy": (1,),
    "sqlite3.connect": (0,), "save_file": (1,), "pq.ParquetWriter": (0,), "pq.write_table": (1,), "np.save": (0,),
    "np.savez": (0,), "torch.save": (1,),
}  # fmt: skip
_KEEPS = frozenset({"with_name", "with_suffix", "with_stem", "joinpath", "expanduser", "resolve", "absolute", "glob",
                    "rglob", "iterdir"})  # fmt: skip
_WRAPS = frozenset({"Path", "str", "place", "places", "local", "real", "sorted", "list", "tuple"})
_STEPS = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.withitem, ast.Return, ast.Call)
_DEEPEST = 3  # attributes of attributes: what calls itself would else find ever longer ones


@dataclass(eq=False)
class Function:
    """A function or method.

    Args:
        parameters: their names, in order, without self.
        writes: the arguments, or `self.name`, that it writes to.
        returns: those that it returns a path of.
        known: what its variables are paths of.
        steps: all of it that moves a path.
        users: functions that look at this one.
    """

    module: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: "Class | None"
    writes: set[str] = field(default_factory=set)
    returns: set[str] = field(default_factory=set)
    users: set["Function"] = field(default_factory=set)

    def __post_init__(self) -> None:
        spec = self.node.args
        names = [one.arg for one in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
        self.parameters = [name for name in names if name not in ("self", "cls")]
        self.known = {name: {name} for name in self.parameters}
        self.steps = [node for node in ast.walk(self.node) if isinstance(node, _STEPS)]

        self.is_property = any(dotted(one).endswith("property") for one in self.node.decorator_list)

    def size(self) -> int:
        """Of what is known so far, which only grows."""
        return len(self.writes) + len(self.returns) + sum(map(len, self.known.values()))


@dataclass(eq=False)
class Class:
    """A class, with what its constructor takes, in which attributes it keeps that, and which of it is written to."""

    module: str
    name: str
    bases: list[str]
    parameters: list[str]
    kept: dict[str, set[str]]
    methods: dict[str, Function] = field(default_factory=dict)
    writes: set[str] = field(default_factory=set)
    users: set[Function] = field(default_factory=set)


class Package:
    """The functions and classes of modules.

    Args:
        modules: syntax trees by dotted name.
    """

    def __init__(self, modules: Mapping[str, ast.Module]) -> None:
        self.modules = modules
        self.functions: dict[tuple[str, str], Function] = {}
        self.classes: dict[tuple[str, str], Class] = {}
        self._imported: dict[str, dict[str, tuple[str, str]]] = {}
        for module, whole in modules.items():
            self._imported[module] = {
                one.asname or one.name: (node.module, one.name)
                for node in ast.walk(whole) if isinstance(node, ast.ImportFrom) and node.module for one in node.names
            }  # fmt: skip
            for node in whole.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.functions[module, node.name] = Function(module, node, None)
                elif isinstance(node, ast.ClassDef):
                    self.classes[module, node.name] = _class(module, node)
        for owner in self.classes.values():
            made_by = self._constructed(owner)
            owner.parameters, owner.kept = made_by.parameters, made_by.kept
        methods = (one for owner in self.classes.values() for one in owner.methods.values())
        changed = {*self.functions.values(), *methods}
        while changed:
            changed = self._followed(changed)

    @cache  # noqa: B019
    def find(self, module: str, name: str) -> Function | Class | str | None:
        """What a name of a module means: a function, a class or a module of ours."""
        key = (module, name)
        for _ in range(5):
            if found := self.functions.get(key) or self.classes.get(key):
                return found
            key = self._imported.get(key[0], {}).get(key[1], ("", ""))
            if f"{key[0]}.{key[1]}" in self.modules:
                return f"{key[0]}.{key[1]}"
        return None

    def method(self, owner: Class, name: str) -> Function | None:
        """A method of a class or of those of ours that it derives from."""
        if name in owner.methods:
            return owner.methods[name]
        above = (self.find(owner.module, base) for base in owner.bases)
        return next((m for base in above if isinstance(base, Class) and (m := self.method(base, name))), None)

    def _constructed(self, owner: Class) -> Class:
        """The class whose constructor makes it."""
        above = (found for base in owner.bases if isinstance(found := self.find(owner.module, base), Class))
        return owner if owner.parameters or "__init__" in owner.methods else next(map(self._constructed, above), owner)

    def _followed(self, functions: set[Function]) -> set[Function]:
        """Follow these once; those that may find more now."""
        found = set[Function]()
        for one in functions:
            before = one.size()
            _Flow(self, one).follow()
            found |= {one, *one.users} if one.size() > before else set()
        for owner in self.classes.values():
            before = len(owner.writes)
            owner.writes |= set(self._written_by(owner))
            found |= owner.users if len(owner.writes) > before else set()
        return found

    def _written_by(self, owner: Class) -> Iterator[str]:
        """Arguments of the constructor that a method writes to, by what it keeps of them."""
        above = [found for base in owner.bases if isinstance(found := self.find(owner.module, base), Class)]
        for one in (m for cls in (owner, *above) for m in cls.methods.values()):
            for path in one.writes:
                name, _, rest = path.removeprefix("self.").partition(".")
                sources = owner.kept.get(name, ()) if path.startswith("self.") else ()
                if one.node.name == "__init__" and not path.startswith("self."):
                    sources, rest = [path], ""
                yield from (f"{source}.{rest}" if rest else source for source in sources)


def _class(module: str, node: ast.ClassDef) -> Class:
    is_data = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    fields = [one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    fields = fields if is_data else []
    found = Class(module, node.name, list(map(ast.unparse, node.bases)), fields, {name: {name} for name in fields})
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            found.methods[one.name] = Function(module, one, found)
    if "__init__" in found.methods:
        found.parameters = found.methods["__init__"].parameters
    return found


class _Flow:
    """Follows the paths through one function."""

    def __init__(self, package: Package, function: Function) -> None:
        self.package, self.function = package, function
        self.known = function.known

    def follow(self) -> None:
        """Add what it writes to and returns."""
        for node in self.function.steps:
            match node:
                case ast.Assign():
                    for target in node.targets:
                        self._assign(target, node.value)
                case ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
                    self._assign(node.target, node.value)
                case ast.For() | ast.comprehension():
                    is_plain = isinstance(node.iter, ast.Tuple | ast.List)
                    for one in node.iter.elts if is_plain else [node.iter]:
                        self._assign(node.target, one)
                case ast.withitem() if node.optional_vars is not None:
                    self._assign(node.optional_vars, node.context_expr)
                case ast.Return() if node.value is not None:
                    self.function.returns |= self._paths(node.value)
                case ast.Call():
                    self._call(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        owner = self.function.owner
        if isinstance(target, ast.Name):
            self.known.setdefault(target.id, set()).update(self._paths(value))
        elif isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            for place, one in enumerate(target.elts):
                self._assign(one, value if values is None else values[place])
        elif owner is not None and self.function.node.name == "__init__" and dotted(target).startswith("self."):
            owner.kept.setdefault(dotted(target).removeprefix("self."), set()).update(self._paths(value))

    def _paths(self, node: ast.expr | None) -> set[str]:
        """The arguments, or attributes of self, that an expression is a path of."""
        match node:
            case ast.Name():
                return self.known.get(node.id, set())
            case ast.Attribute(value=ast.Name(id="self")):
                found = self.function.owner and self.package.method(self.function.owner, node.attr)
                if found:
                    found.users.add(self.function)
                return found.returns if found and found.is_property else {f"self.{node.attr}"}
            case ast.Attribute(attr="parent"):
                return self._paths(node.value)
            case ast.Attribute():
                return {f"{one}.{node.attr}" for one in self._paths(node.value) if one.count(".") < _DEEPEST}
            case ast.BinOp(op=ast.Div()):
                return self._paths(node.left)
            case ast.IfExp():
                return self._paths(node.body) | self._paths(node.orelse)
            case ast.BoolOp(values=parts):
                return set().union(*map(self._paths, parts))
            case ast.NamedExpr() | ast.Starred() | ast.Subscript():
                return self._paths(node.value)
            case ast.JoinedStr(values=[ast.FormattedValue(value=first), *_]):
                return self._paths(first)
            case ast.Call(func=ast.Attribute(attr=name)) if name in _KEEPS:
                return self._paths(node.func.value)
            case ast.Call() if dotted(node.func).rpartition(".")[2] in _WRAPS and node.args:
                return self._paths(node.args[0])
            case ast.Call():
                callee = self._callee(node.func)
                return self._passed(node, callee, callee.returns) if isinstance(callee, Function) else set()
        return set()

    def _callee(self, called: ast.expr) -> Function | Class | None:
        owner, module = self.function.owner, self.function.module
        first, _, rest = dotted(called).partition(".")
        if first in ("self", "cls") and owner is not None:
            found: Function | Class | str | None = self.package.method(owner, rest)
        else:
            found = self.package.find(module, first) if first else None
        if rest and isinstance(found, str):
            found = self.package.find(found, rest)
        elif rest and isinstance(found, Class):
            found = self.package.method(found, rest)
        if found is None or isinstance(found, str):
            return None
        found.users.add(self.function)
        return found

    def _passed(self, call: ast.Call, callee: Function | Class, named: set[str]) -> set[str]:
        """What of ours stands for those arguments of a function that is called."""
        given = dict(zip(callee.parameters, call.args, strict=False))
        given |= {one.arg: one.value for one in call.keywords if one.arg}
        found = {one for one in named if one.startswith("self.") and isinstance(callee, Function)}
        for one in named:
            name, _, rest = one.partition(".")
            found |= {f"{path}.{rest}" if rest else path for path in self._paths(given.get(name))}
        return {one for one in found if one.count(".") <= _DEEPEST}

    def _call(self, call: ast.Call) -> None:
        if dotted(call.func).rpartition(".")[2] == "partial" and call.args:
            call = ast.Call(call.args[0], call.args[1:], call.keywords)
        name = dotted(call.func)
        places = FUNCTIONS.get(name, FUNCTIONS.get(name.rpartition(".")[2], ()))
        written = [call.args[place] for place in places if place < len(call.args)]
        if name == "os.open" and not any(flag in ast.unparse(call.args[1]) for flag in ("O_RDONLY", "O_PATH")):
            written.append(call.args[0])
        if name in ("open", "av.open", "tarfile.open", "zipfile.ZipFile") and _writes(call, 1):
            written.append(call.args[0])
        if isinstance(call.func, ast.Attribute):
            method = call.func.attr
            replaces = method == "replace" and len(call.args) == 1 and not call.keywords
            if method in METHODS or replaces or (method == "open" and _writes(call, 0)):
                written.append(call.func.value)
            if replaces or method == "rename":
                written += call.args[:1]
        for one in written:
            self.function.writes |= self._paths(one)
        if (callee := self._callee(call.func)) is not None:
            self.function.writes |= self._passed(call, callee, callee.writes)


def _writes(call: ast.Call, place: int) -> bool:
    """Whether the mode of an `open` is one that writes."""
    mode = next((one.value for one in call.keywords if one.arg == "mode"), [*call.args, None, None][place])
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set(mode.value) & set("wax+"))
