"""Runs torch operations on tensors that have shapes but no data, and counts the bytes of the live ones.

A storage counts from the operation that makes it until its last tensor is gone. Temporary memory inside a kernel is
not seen.

Torch's own fake tensors would do, but take 0.3 ms an operation, a third of a plan's time. Here a tensor on the meta
device is wrapped by one that claims to be on the CPU, so that autocast treats it as on a device. The output of an
operation is cached by the shapes of its operands. That takes a fifth of the time (torch 2.13, 2 cores, 2026-11), and
the bytes are the same: `tests/perf/test_live.py`. `perf/traced.py` measures a training step with it.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_META, _CPU = torch.device("meta"), torch.device("cpu")

#: Outputs by operation and shapes of the operands: (container, (shape, strides, dtype) of each tensor).
_cache: dict[Hashable, tuple[type, list[Any]]] = {}


class ShapeTensor(Tensor):
    """Wraps a tensor on the meta device, and claims to be on the CPU."""

    on_meta: Tensor

    @staticmethod
    def __new__(cls, on_meta: Tensor) -> "ShapeTensor":
        """Torch makes tensors in `__new__`."""
        made: ShapeTensor = Tensor._make_wrapper_subclass(
            cls, on_meta.shape, strides=on_meta.stride(), storage_offset=on_meta.storage_offset(),
            dtype=on_meta.dtype, device=_CPU,
        )  # fmt: skip
        made.on_meta = on_meta
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch writes the defaults otherwise
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Raise AssertionError: only `LiveBytes` can run operations on these."""
        raise AssertionError(f"{func} of a tensor without numbers, outside of LiveBytes")


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch's own making
    """A mode in which every tensor is a `ShapeTensor`, and whose live bytes count from `begin` on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0  #: bytes alive
        self._counting = False
        self._growths = [0]  # live bytes after each allocation
        self._sizes: dict[int, int] = {}
        self._uncounted: dict[int, Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """If True, torch would import its compiler (0.7 s) to skip it at each operation; nothing is compiled here."""
        return False

    def begin(self, uncounted: Iterable[Tensor], initial: int) -> None:
        """Start to count, at `initial` bytes; tensors of `uncounted`, such as parameters, never count."""
        self._uncounted = {_storage(tensor): tensor for tensor in uncounted}
        self.now, self._counting = initial, True

    def growths(self) -> list[int]:
        """Live bytes at the last call, and after each allocation since then."""
        growths, self._growths = self._growths, [self.now]
        return growths

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        outer: dict[int, ShapeTensor] = {}
        inside = [_inner(value, outer) for value in args]
        named = {name: _inner(value, outer) for name, value in (kwargs or {}).items()}
        if "device" in named or not outer:
            named["device"] = _META
        return self._wrap(_compute_output(func, inside, named, outer.values()), outer)

    def _wrap(self, value: Any, outer: Mapping[int, ShapeTensor]) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)([self._wrap(one, outer) for one in value])
        if not isinstance(value, Tensor):
            return value
        if (before := outer.get(id(value))) is not None:  # an in-place operation returns its operand
            return before
        if self._counting:
            self._on_alloc(value)
        return ShapeTensor(value)

    def _on_alloc(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        if key in self._sizes or key in self._uncounted:
            return
        self._sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self._growths.append(self.now)
        weakref.finalize(storage, self._on_free, key)

    def _on_free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def _inner(value: Any, outer: dict[int, ShapeTensor]) -> Any:
    """The value with its `ShapeTensor`s unwrapped; `outer` gets each of them, by the id of the tensor inside."""
    if isinstance(value, ShapeTensor):
        outer[id(value.on_meta)] = value
        return value.on_meta
    if isinstance(value, (list, tuple)):
        return type(value)([_inner(one, outer) for one in value])
    return value


def _compute_output(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], operands: Iterable[ShapeTensor]) -> Any:
    """An operation's output. Many of torch's meta kernels are Python and take a millisecond; each runs once a shape."""
    if any(returned.alias_info for returned in func._schema.returns):  # a view, or in place
        return func(*args, **kwargs)
    key = func, *map(_key, args), *((name, _key(value)) for name, value in kwargs.items())
    if (found := _cache.get(key)) is not None:
        kind, outputs = found
        made = [torch.empty_strided(one[0], one[1], dtype=one[2], device=_META) if one else one for one in outputs]
        return made[0] if kind is Tensor else kind(made)
    output = func(*args, **kwargs)
    outputs = list(output) if isinstance(output, (list, tuple)) else [output]
    storages = {_storage(one) for one in operands}
    if all(one is None or (isinstance(one, Tensor) and _storage(one) not in storages) for one in outputs):
        described = [None if one is None else (one.shape, one.stride(), one.dtype) for one in outputs]
        _cache[key] = Tensor if isinstance(output, Tensor) else type(output), described
    return output


def _key(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return type(value), value


def _storage(tensor: Tensor) -> int:
    inner = tensor.on_meta if isinstance(tensor, ShapeTensor) else tensor
    number: int = inner.untyped_storage()._cdata
    return number
