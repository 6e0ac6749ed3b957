"""Writes a tiny text detector as an ONNX file, without the onnx package; it takes bright smears for text."""

from pathlib import Path

import numpy as np

_FLOATS, _INTS, _FLOAT32 = 6, 7, 1  # of attributes and tensors in ONNX's protocol


def bright_smears(path: Path) -> Path:
    """DBNet's shape of input and output, (1, 3, h, w) to (1, 1, h, w); where 9x61 pixels are less dark than most.."""
    weight = np.full((1, 3, 9, 61), 0.02, np.float32)
    bias = np.array([6.0], np.float32)
    convolution = _node("Conv", ["image", "weight", "bias"], "sum", pads=[4, 30, 4, 30], kernel_shape=[9, 61])
    graph = b"".join([
        _field(1, convolution), _field(1, _node("Sigmoid", ["sum"], "map")), _field(2, b"smears"),
        _field(5, _tensor("weight", weight)), _field(5, _tensor("bias", bias)),
        _field(11, _value("image", (1, 3, 0, 0))), _field(12, _value("map", (1, 1, 0, 0))),
    ])  # fmt: skip
    path.write_bytes(_number(1, 8) + _field(7, graph) + _field(8, _number(2, 13)))
    return path


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _node(kind: str, inputs: list[str], output: str, **attributes: list[int]) -> bytes:
    parts = [_field(1, name.encode()) for name in inputs] + [_field(2, output.encode()), _field(4, kind.encode())]
    for name, values in attributes.items():
        attribute = _field(1, name.encode()) + b"".join(_number(8, value) for value in values) + _number(20, _INTS)
        parts.append(_field(5, attribute))
    return b"".join(parts)


def _tensor(name: str, values: np.ndarray) -> bytes:
    shape = b"".join(_number(1, size) for size in values.shape)
    return shape + _number(2, _FLOAT32) + _field(8, name.encode()) + _field(9, values.astype("<f4").tobytes())


def _value(name: str, shape: tuple[int, ...]) -> bytes:
    sides = b"".join(_field(1, _number(1, size) if size else _field(2, b"side")) for size in shape)
    return _field(1, name.encode()) + _field(2, _field(1, _number(1, _FLOAT32) + _field(2, sides)))
