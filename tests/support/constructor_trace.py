"""Follows a constructor or function of ours through what it calls, to what opens, writes, connects or starts.

Names are looked up as Python would: in the module, in an import inside the function, on `self`'s class. A method of an
object that was given is not followed, but judged by its name. Every branch counts, and so does a function that is
handed over; what is only defined inside does not.
"""

import ast
import builtins
import dataclasses
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache, cached_property
from types import ModuleType
from typing import Any, Literal

Sink = Literal["reads", "writes", "connects", "starts"]

#: By the name of a method, whatever it is called on.
_METHODS: dict[str, Sink] = {
    **dict.fromkeys(("read_text", "read_bytes", "iterdir", "glob", "rglob", "from_pretrained", "from_file"), "reads"),
    **dict.fromkeys(("write_text", "write_bytes", "mkdir", "unlink", "touch", "rename", "rmdir", "symlink_to",
                     "hardlink_to", "chmod", "truncate", "ftruncate", "makedirs", "rmtree"), "writes"),
    **dict.fromkeys(("connect", "bind", "listen", "create_connection", "create_server"), "connects"),
}  # fmt: skip
#: By the module of a function or class and its name; an empty name is all of them.
_CALLS: dict[tuple[str, str], Sink] = {
    **{(module, ""): "starts" for module in ("subprocess", "_posixsubprocess", "multiprocessing", "pty", "ray")},
    **{(module, ""): "connects" for module in ("socketserver", "ssl", "http.client", "http.server", "urllib.request",
                                               "httpx")},
    **{(module, name): "connects" for module in ("socket", "_socket") for name in (
        "socket", "create_connection", "create_server", "getaddrinfo", "gethostbyname", "getfqdn")},
    **{(module, ""): "writes" for module in ("tempfile", "shutil", "mmap")},
    **{("posix", name): "writes" for name in (
        "remove", "unlink", "rename", "replace", "mkdir", "rmdir", "chmod", "chown", "link", "symlink", "truncate",
        "ftruncate", "mkfifo", "pipe")},
    **{("posix", name): "reads" for name in ("listdir", "scandir", "dup", "pread", "read")},
    **{("posix", name): "starts" for name in ("system", "fork", "forkpty", "kill", "killpg", "execv", "execve",
                                              "posix_spawn", "posix_spawnp")},
    **{("os", name): "writes" for name in ("makedirs", "removedirs", "renames")},
    **{("os", name): "starts" for name in ("popen", "execl", "execlp", "execvp", "spawnl", "spawnv", "spawnvp")},
    ("os", "walk"): "reads", ("os", "fdopen"): "reads", ("numpy", "memmap"): "writes", ("numpy", "load"): "reads",
    ("safetensors", ""): "reads", ("tokenizers", ""): "reads", ("torch.serialization", "load"): "reads",
}  # fmt: skip


def sinks(target: Any) -> dict[Sink, str]:
    """What calling a class or function of ours may do, each with one way there."""
    found: dict[Sink, str] = {}
    for kind, way in _Trace().called(target, None, None):
        found.setdefault(kind, way)
    return found


class _Trace:
    """One walk; nothing is looked at twice."""

    def __init__(self) -> None:
        self._seen: set[tuple[Any, Any]] = set()

    def called(self, target: Any, kind: type | None, home: type | None) -> Iterator[tuple[Sink, str]]:
        """Of a class's constructor, or of a function; `kind` is the class of `self`, `home` where it is defined."""
        target = inspect.unwrap(target) if callable(target) else target
        if (target, kind) in self._seen:
            return
        self._seen.add((target, kind))
        if inspect.isclass(target):
            for function, owner in _constructors(target):
                yield from self._named(target, self.called(function, target, owner))
        elif inspect.isfunction(target) and (body := _body(target)) is not None:
            names = _names(target, body)
            for node in _run(body):
                yield from self._named(target, self._node(node, names, kind, home))

    def _named(self, target: Any, found: Iterator[tuple[Sink, str]]) -> Iterator[tuple[Sink, str]]:
        for sink, way in found:
            yield sink, f"{target.__qualname__} > {way}"

    def _node(
        self, node: ast.AST, names: dict[str, Any], kind: type | None, home: type | None
    ) -> Iterator[tuple[Sink, str]]:
        if isinstance(node, ast.Attribute) and kind is not None and _is_self(node.value):
            value = inspect.getattr_static(kind, node.attr, None)
            wrapped = value.fget if isinstance(value, property) else getattr(value, "func", None)
            if isinstance(value, property | cached_property):
                yield from self.called(wrapped, kind, _home(kind, node.attr))
        if not isinstance(node, ast.Call):
            return
        for given in (*node.args, *(keyword.value for keyword in node.keywords)):
            function = _value(given, names, kind)
            if inspect.isfunction(function) and _is_ours(function):
                yield from self.called(function, None, None)
        yield from self._call(node, names, kind, home)

    def _call(
        self, node: ast.Call, names: dict[str, Any], kind: type | None, home: type | None
    ) -> Iterator[tuple[Sink, str]]:
        function = node.func
        if isinstance(function, ast.Attribute) and _is_super(function.value):
            above = kind.__mro__[kind.__mro__.index(home) + 1 :] if kind is not None and home in kind.__mro__ else ()
            owner = next((one for one in above if function.attr in vars(one)), None)
            if owner is not None and _is_ours(owner):
                yield from self.called(getattr(owner, function.attr), kind, owner)
            elif owner is not None and (sink := _of_module(owner)):
                yield sink, f"{owner.__qualname__}.{function.attr}"
            return
        value = _value(function, names, kind)
        if value is not None and _is_ours(inspect.unwrap(value) if callable(value) else value):
            own = isinstance(function, ast.Attribute) and kind is not None and _is_self(function.value)
            owner = _home(kind, function.attr) if own and isinstance(function, ast.Attribute) else None
            yield from self.called(value, kind if own else None, owner)
        elif sink := _sink(node, value):
            yield sink, ast.unparse(function)


def _constructors(kind: type) -> Iterator[tuple[Any, type | None]]:
    for name in ("__new__", "__init__", "__post_init__"):
        owner = _home(kind, name)
        if owner is not None and _is_ours(owner):
            yield inspect.unwrap(getattr(owner, name)), owner
        elif owner is not None and _of_module(owner):
            yield _foreign(owner), owner
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if field.default_factory is not dataclasses.MISSING:
            yield field.default_factory, None


def _foreign(owner: type) -> Any:
    def constructor() -> None:
        raise AssertionError(owner)

    return constructor


def _home(kind: type | None, name: str) -> type | None:
    return next((one for one in kind.__mro__ if name in vars(one)), None) if kind is not None else None


@cache
def _body(function: Any) -> tuple[ast.stmt, ...] | None:
    """Its statements; none of what dataclasses and the like have made."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    return tuple(tree.body) if isinstance(tree, ast.FunctionDef) else None


def _run(body: tuple[ast.stmt, ...]) -> Iterator[ast.AST]:
    """Every node that runs with the function, so none of a function that is defined inside."""
    left: list[ast.AST] = list(body)
    while left:
        node = left.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield node
            left += ast.iter_child_nodes(node)


def _names(function: Any, body: tuple[ast.stmt, ...]) -> dict[str, Any]:
    """What its global names mean, and those that it imports."""
    names = {**vars(builtins), **function.__globals__}
    for node in _run(body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= _imported(node)
    return names


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, Any]:
    try:
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            return {one.asname or one.name: getattr(module, one.name, None) for one in node.names}
        whole = [(one, importlib.import_module(one.name)) for one in node.names]
    except ImportError:  # an optional package; its calls are judged by their names
        return {}
    return {one.asname or one.name.partition(".")[0]: module if one.asname else
            importlib.import_module(one.name.partition(".")[0]) for one, module in whole}  # fmt: skip


def _value(node: ast.expr, names: dict[str, Any], kind: type | None) -> Any:
    """What an expression means where that can be told from names alone."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    if kind is not None and _is_self(node.value):
        found = inspect.getattr_static(kind, node.attr, None)
        return getattr(found, "__func__", found)
    above = _value(node.value, names, kind)
    found = getattr(above, node.attr, None) if isinstance(above, ModuleType | type) else None
    return getattr(found, "__func__", found)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "nemo_vfm"


def _sink(call: ast.Call, value: Any) -> Sink | None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if value is builtins.open or name == "open":
        return _of_mode(call)
    return _of_module(value) or (_METHODS.get(name) if isinstance(call.func, ast.Attribute) else None)


def _of_module(value: Any) -> Sink | None:
    """What a function or class of somebody else's does, by the module that it is defined in."""
    module, name = str(getattr(value, "__module__", "")), str(getattr(value, "__name__", ""))
    above = [module.rsplit(".", count)[0] for count in range(module.count(".") + 1)]
    return _CALLS.get((module, name)) or next((_CALLS[one, ""] for one in above if (one, "") in _CALLS), None)


def _of_mode(call: ast.Call) -> Sink:
    """Of `open`: a mode or flags that only read, or none."""
    words = {node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    flags = {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute) and node.attr.startswith("O_")}
    writes = any(set(word) <= set("rwaxbt+") and set(word) & set("wax+") for word in words)
    return "writes" if writes or flags & {"O_RDWR", "O_WRONLY", "O_CREAT", "O_TRUNC", "O_APPEND"} else "reads"
