"""Writes honest and hostile files of torch.save and .nemo archives."""

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

CONFIG = "target: nemo.collections.asr.models.EncDecCTCModel\nencoder: {_target_: os.system, d_model: 8}\n"


def saved(value: object) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def members_of(data: bytes) -> dict[str, bytes]:
    """Name -> bytes of a zip."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def with_pickle(data: bytes, pickled: bytes) -> bytes:
    """A file of torch.save whose list is another pickle."""
    return zipped({name: pickled if name.endswith("data.pkl") else old for name, old in members_of(data).items()})


class Touch:
    """Unpickling this makes a file: the canary."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def evil_pickles(canary: Path) -> Iterator[tuple[str, bytes]]:
    """(what it tries, pickle) of programs that make the canary when they are unpickled."""
    for protocol in range(6):
        yield f"protocol {protocol}", pickle.dumps(Touch(canary), protocol)
    yield "in a state dict", pickle.dumps({"w": 1, "state_dict": {"w": Touch(canary)}}, 2)
    call = f"touch {canary}".encode()
    text = b"X" + len(call).to_bytes(4, "little") + call
    yield "builtins.eval", b"\x80\x02cbuiltins\neval\n(" + text + b"tR."
    yield "an instance by its class", b"(" + b"S'" + call + b"'\n" + b"ios\nsystem\n."
    yield "obj", b"\x80\x02(cos\nsystem\n" + text + b"o."
    yield "an extension code", b"\x80\x02\x82\x01."
    yield "first broken, then evil", b"\x80\x02\xff" + pickle.dumps(Touch(canary), 2)
    yield "through torch", b"\x80\x02ctorch.serialization\nos.system\n" + text + b"\x85R."
    yield "torch.load within", b"\x80\x02ctorch\nload\n" + text + b"\x85R."
    yield "a storage that is no storage", b"\x80\x02(X\x07\x00\x00\x00storagecos\nsystem\nX\x01\x00\x00\x000NK\x01tQ."


def nemo(members: Mapping[str, bytes], *, packed: bool = False, extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in extra:
            tar.addfile(info)
    return gzip.compress(buffer.getvalue()) if packed else buffer.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info
