"""Reads plain values from the bytes of a pickle: texts, numbers, containers, and where tensors are. Nothing is called.

A pickle is a program for a small stack machine. This machine knows the instructions that build data, and a closed list
of names that torch writes for tensors. Each name stands for arithmetic of ours, and nothing is imported. Any other name
is refused, or becomes a `LeftOut`, which stays inert whatever the program does with it. A caller may name classes whose
objects are kept as an `ObjectRecord`: their state alone, of which this machine calls nothing either. A tensor's shape
that its storage cannot hold is refused.
"""

import io
import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch

from nemo_vfm.core.errors import DataError

_MAX_DIMS = 64
_MAX_LENGTH = 1 << 48
_NAMES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16",
          "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128")  # fmt: skip
#: Name in a pickle -> dtype.
DTYPES: Final[dict[str, torch.dtype]] = {f"torch.{name}": getattr(torch, name) for name in _NAMES}
#: Name of a storage's type in a pickle -> dtype of its numbers; None where a tensor says it.
STORAGES: Final[dict[str, torch.dtype | None]] = {
    "torch.DoubleStorage": torch.float64, "torch.FloatStorage": torch.float32, "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16, "torch.LongStorage": torch.int64, "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16, "torch.CharStorage": torch.int8, "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool, "torch.ComplexFloatStorage": torch.complex64,
    "torch.ComplexDoubleStorage": torch.complex128, "torch.storage.UntypedStorage": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of numbers in the file."""

    key: str  #: its number in the archive
    dtype: torch.dtype | None  #: of the numbers; None where it counts bytes
    count: int  #: how many there are

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return self.count * (1 if self.dtype is None else self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor that has not been read."""

    storage: Storage
    dtype: torch.dtype
    offset: int  #: of its first number, in numbers
    shape: tuple[int, ...]
    stride: tuple[int, ...]  #: steps between neighbours along each axis, in numbers

    @property
    def num_bytes(self) -> int:
        """Its size when it is written out."""
        return prod(self.shape) * self.dtype.itemsize


def tensor_place(
    storage: object, offset: object, shape: object, stride: object, *, dtype: object = None
) -> TensorPlace:
    """The place, once it is certain that every number of the tensor lies in its storage."""
    if not isinstance(storage, Storage):
        raise DataError("its pickle makes a tensor of what is not a storage")
    kind = dtype if isinstance(dtype, torch.dtype) else storage.dtype
    if kind is None:
        raise DataError("its pickle makes a tensor without a dtype")
    place = TensorPlace(storage, kind, counts((offset,))[0], counts(shape), counts(stride))
    # Neither beyond the end, nor more numbers than there are (an axis that repeats the same ones).
    available = storage.num_bytes // kind.itemsize
    if len(place.shape) != len(place.stride):
        raise DataError(f"a tensor of shape {place.shape} comes with {len(place.stride)} strides")
    count = prod(place.shape)
    last = place.offset + sum((length - 1) * step for length, step in zip(place.shape, place.stride, strict=True))
    if count > available or (count and last >= available):
        raise DataError(
            f"a tensor of shape {place.shape} asks for {place.num_bytes:,} bytes from number {place.offset:,} on; "
            f"storage {place.storage.key} has {place.storage.num_bytes:,} bytes"
        )
    return place


def counts(values: object, told_by: str = "pickle") -> tuple[int, ...]:
    """A tensor's shape, strides or place, once it is certain that they can be."""
    if not isinstance(values, tuple | list) or len(values) > _MAX_DIMS:
        raise DataError(f"its {told_by} gives a tensor's shape as something else than a few counts")
    for value in values:
        if type(value) is not int or not 0 <= value < _MAX_LENGTH:
            raise DataError(f"its {told_by} gives a tensor a length that is not a count")
    return tuple(values)


MAX_BYTES = 64 << 20
MAX_INSTRUCTIONS = 2_000_000  #: some 70,000 tensors; bounds the memory, since one byte can make a container
MAX_KEY = 1 << 32  # whole numbers as keys: larger ones can be chosen so that they all collide
_TENSOR, _TENSOR_V3, _PARAMETER = "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What stands for an object that is not data: only its name is known."""

    name: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """What stands for bytes and streams of bytes, such as Transformer Engine's `_extra_state`; they are not read."""


@dataclass(slots=True, eq=False)
class ObjectRecord:
    """What stands for an object of a class that the caller knows."""

    name: str  #: of the class
    state: object = None  #: what the pickle says of the object; not checked


@dataclass(frozen=True, slots=True)
class _Name:
    """One of the names we know, pushed by the program."""

    text: str


_MARK: Final = object()  # where the arguments of an instruction begin


def read_pickle(
    data: bytes, *, leave_out: bool = False, records: Collection[str] = (), most: int | None = None
) -> tuple[object, tuple[str, ...]]:
    """The value that a pickle describes, with a `TensorPlace` where it holds a tensor, and the names left out of it.

    Args:
        leave_out: put a `LeftOut` where the pickle names something that is not data, instead of refusing it.
        records: names of classes whose objects become an `ObjectRecord`.
        most: instructions that it may have; None allows what a list of tensors needs.
    """
    if len(data) > MAX_BYTES:
        raise DataError(f"its pickle has {len(data):,} bytes; a list of tensors has at most {MAX_BYTES:,}")
    machine = _PickleMachine(leave_out, frozenset(records), MAX_INSTRUCTIONS if most is None else most)
    try:
        return machine.run(data), tuple(sorted(machine.left_out))
    except DataError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"its pickle is damaged: {error}") from error


class _PickleMachine:
    def __init__(self, leave_out: bool, records: frozenset[str], most: int) -> None:
        self.leave_out, self.left_out = leave_out, set[str]()
        self.records, self.most = records, most
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> object:
        """Read instruction after instruction until STOP."""
        for count, (opcode, argument, position) in enumerate(pickletools.genops(io.BytesIO(data)), 1):
            if count > self.most:
                raise DataError(f"its pickle has more than {self.most:,} instructions")
            if opcode.name == "STOP":
                if len(self.stack) != 1 or (position or 0) + 1 != len(data):
                    raise DataError(f"its pickle ends at byte {position:,} of {len(data):,} with {len(self.stack)} "
                                    "values left")  # fmt: skip
                return self.stack[0]
            action = _ACTIONS.get(opcode.name)
            if action is None:
                raise DataError(f"its pickle uses the instruction {opcode.name} at byte {position:,}, "
                                f"which a list of tensors does not need")  # fmt: skip
            action(self, argument)
        raise DataError("its pickle has no end")

    def pop(self, count: int) -> list[Any]:
        """The last values in their order, which go."""
        if len(self.stack) < count:
            raise DataError("its pickle asks for more values than there are")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def pop_mark(self) -> list[Any]:
        """Everything above the last mark, which goes, too."""
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                values = self.stack[index + 1 :]
                del self.stack[index:]
                return values
        raise DataError("its pickle asks for a mark that was never set")

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, LeftOut):
            return
        if type(target) is not dict or len(values) % 2:
            raise DataError("its pickle sets items of what is not a mapping")
        for key, value in zip(values[::2], values[1::2], strict=True):
            # A record is its own key: two that say the same are two, and none can be made to collide.
            if not (type(key) in (str, ObjectRecord) or (type(key) is int and 0 <= key < MAX_KEY)):
                raise DataError(f"a mapping in its pickle has a key of type {_kind(key)}; texts and counts are read")
            target[key] = value

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, LeftOut):
            return
        if type(target) is not list:
            raise DataError("its pickle appends to what is not a list")
        target.extend(values)

    def name(self, module: object, name: object) -> None:
        """A name: one that we know, or one that is refused."""
        if type(module) is not str or type(name) is not str:
            raise DataError("its pickle gives a name that is not text")
        full = f"{module}.{name}"
        if full in DTYPES:
            self.stack.append(DTYPES[full])
        elif full in _CALLS or full in STORAGES or full in self.records:
            self.stack.append(_Name(full))
        elif self.leave_out:
            self.left_out.add(full[:200])
            self.stack.append(LeftOut(full[:200]))
        else:
            raise DataError(f"its pickle names {full[:200]}, which is code, not data; nothing was run")

    def call(self, arguments: object) -> None:
        """What stands for a call: arithmetic of ours for a known name."""
        called = self.stack.pop()
        if isinstance(called, LeftOut):
            self.stack.append(called)
            return
        if not isinstance(called, _Name) or type(arguments) is not tuple:
            raise DataError(f"its pickle calls {_kind(called)}, which cannot be called")
        if called.text in self.records:
            self.stack.append(ObjectRecord(called.text))
        elif called.text in _CALLS:
            self.stack.append(_CALLS[called.text](*arguments))
        else:
            raise DataError(f"its pickle calls {_kind(called)}, which cannot be called")

    def build(self) -> None:
        """State for the object below: torch hangs version numbers on a mapping; they are not needed."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, ObjectRecord) and target.state is None:
            target.state = state
        elif not isinstance(target, dict | LeftOut | Opaque):
            raise DataError(f"its pickle sets the state of {_kind(target)}")

    def storage(self) -> None:
        """A storage by its number: ('storage', type, key, device, count)."""
        word, kind, key, _, count = self.stack.pop()
        if word != "storage" or not isinstance(kind, _Name) or kind.text not in STORAGES:
            raise DataError("its pickle refers to something outside that is not a storage of numbers")
        if not (type(key) is str and key.isascii() and key.isdecimal() and type(count) is int and count >= 0):
            raise DataError("its pickle refers to a storage without number or size")
        self.stack.append(Storage(key, STORAGES[kind.text], count))


def _kind(value: object) -> str:
    return value.text if isinstance(value, _Name) else type(value).__name__


def _ordered_dict(*pairs: object) -> dict[Any, Any]:
    if pairs:
        raise DataError("its pickle makes an OrderedDict in a way that torch does not")
    return {}


#: Names that torch writes for data, and what stands for a call of each.
_CALLS: Final[dict[str, Callable[..., object]]] = {
    "collections.OrderedDict": _ordered_dict,
    f"torch._utils.{_TENSOR}": lambda *given: tensor_place(*given[:4]),
    f"torch._utils.{_TENSOR_V3}": lambda *given: tensor_place(*given[:4], dtype=given[6]),
    f"torch._utils.{_PARAMETER}": lambda data, *_: data,
    "torch.Size": lambda lengths: tuple(lengths),
    "torch.device": lambda *words: ":".join(str(word) for word in words if type(word) in (str, int)),
    **dict.fromkeys(
        ("_io.BytesIO", "_codecs.encode", "builtins.bytes", "__builtin__.bytes", "builtins.bytearray"),
        lambda *_: Opaque(),
    ),
}


#: What each instruction does. One that is not here is refused by its name.
_ACTIONS: Final[dict[str, Callable[[_PickleMachine, Any], object]]] = {
    "PROTO": lambda m, a: None,
    "FRAME": lambda m, a: None,
    "MARK": lambda m, a: m.stack.append(_MARK),
    "NONE": lambda m, a: m.stack.append(None),
    "NEWTRUE": lambda m, a: m.stack.append(True),
    "NEWFALSE": lambda m, a: m.stack.append(False),
    **dict.fromkeys(
        (
            "BININT",
            "BININT1",
            "BININT2",
            "LONG1",
            "BINFLOAT",
            "BINUNICODE",
            "SHORT_BINUNICODE",
            "SHORT_BINBYTES",
            "BINBYTES",
            "BINBYTES8",
        ),
        lambda m, a: m.stack.append(a),
    ),
    "EMPTY_TUPLE": lambda m, a: m.stack.append(()),
    "TUPLE1": lambda m, a: m.stack.append(tuple(m.pop(1))),
    "TUPLE2": lambda m, a: m.stack.append(tuple(m.pop(2))),
    "TUPLE3": lambda m, a: m.stack.append(tuple(m.pop(3))),
    "TUPLE": lambda m, a: m.stack.append(tuple(m.pop_mark())),
    "EMPTY_LIST": lambda m, a: m.stack.append([]),
    "APPEND": lambda m, a: m.extend(m.pop(1)),
    "APPENDS": lambda m, a: m.extend(m.pop_mark()),
    "EMPTY_DICT": lambda m, a: m.stack.append({}),
    "SETITEM": lambda m, a: m.set_items(m.pop(2)),
    "SETITEMS": lambda m, a: m.set_items(m.pop_mark()),
    "BINPUT": lambda m, a: m.remember(a),
    "LONG_BINPUT": lambda m, a: m.remember(a),
    "MEMOIZE": lambda m, a: m.remember(len(m.memo)),
    "BINGET": lambda m, a: m.stack.append(m.memo[a]),
    "LONG_BINGET": lambda m, a: m.stack.append(m.memo[a]),
    "GLOBAL": lambda m, a: m.name(*str(a).split(" ", 1)),
    "STACK_GLOBAL": lambda m, a: m.name(*m.pop(2)),
    "REDUCE": lambda m, a: m.call(m.stack.pop()),
    "NEWOBJ": lambda m, a: m.call(m.stack.pop()),
    "BUILD": lambda m, a: m.build(),
    "BINPERSID": lambda m, a: m.storage(),
}
