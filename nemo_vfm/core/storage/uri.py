"""Parses text into a local path or an address in an object store, and refuses any other kind of address.

An address names a bucket and a key and nothing else: no password, no query, no chain of file systems. Credentials come
from the environment or the cloud's own profile files (docs/how-to/clusters/object-stores.md).
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Self

from nemo_vfm.core.secret import is_key, register

#: Closed on purpose: the library below knows schemes that open archives, start shells and follow redirections.
SCHEMES = ("s3", "gs", "abfs")
#: What must be installed for an address of this scheme; s3 comes with pyarrow.
BACKENDS = {"gs": "gcsfs", "abfs": "adlfs"}
_LONGEST_KEY = 1024  # what S3 takes, in bytes
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]*):/+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,62}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\?#]")


class Address(str):
    """A folder or an object in a store, such as `s3://bucket/videos`; never with a slash at its end.

    Raises:
        ValueError: this is not such an address; the text never shows a password.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Judge and keep it."""
        scheme, mark, rest = text.partition("://")
        known = " or ".join(f"{name}://bucket/..." for name in SCHEMES)
        if not mark or scheme not in SCHEMES:
            hub = "; `nemo-vfm get hf://ORG/MODEL` downloads a model" if scheme == "hf" else ""
            raise ValueError(f"{scheme[:40]!r} is not a supported URL scheme; use a local path, or {known}{hub}")
        bucket, _, key = rest.rstrip("/").partition("/")
        if "@" in bucket or ":" in bucket:
            register(bucket.rpartition("@")[0].rpartition(":")[2])  # the complaint shows the line that it stands on
            raise ValueError(
                "the URL holds a user, password or port: docs/how-to/clusters/object-stores.md says where they go"
            )
        if is_key(text):  # whoever owns the bucket reads the names that are asked for
            raise ValueError(
                "the URL must not contain a secret: part of this one is the value of a variable such as a key"
            )
        if not _BUCKET.fullmatch(bucket):
            raise ValueError(
                f"{bucket[:80]!r} is not the name of a bucket: 3 to 63 lower-case letters, digits, . - and _"
            )
        if _CONTROL.search(key) or {"", ".", ".."} & set(key.split("/") if key else ()):
            raise ValueError(f"{scheme}://{bucket}/... has a part that is empty, a dot, or holds one of ? # \\")
        if len(key.encode(errors="replace")) > _LONGEST_KEY:
            raise ValueError(f"the key of an address has at most {_LONGEST_KEY} bytes, this one {len(key.encode())}")
        return super().__new__(cls, f"{scheme}://{bucket}/{key}".rstrip("/"))

    def __truediv__(self, name: str) -> "Address":
        return Address(f"{self}/{name}")

    @property
    def scheme(self) -> str:
        return self.partition("://")[0]

    @property
    def path(self) -> str:
        """Bucket and key, as the file system of its scheme takes them."""
        return self.partition("://")[2]

    @property
    def bucket(self) -> str:
        return self.path.partition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot on, in lower case."""
        return PurePosixPath(self.name).suffix.lower()

    @property
    def parent(self) -> "Address":
        """Without the last part; of a bucket, the bucket."""
        return Address(f"{self.scheme}://{self.path.rpartition('/')[0] or self.bucket}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: Callable[[type], Any]) -> dict[str, Any]:
        """How a recipe's text becomes one. Plain mappings, since core imports no pydantic."""
        return {"type": "function-after", "function": {"type": "no-info", "function": cls}, "schema": handler(str)}


#: What a slot that takes both is annotated with.
Place = Address | Path


def place(value: str | PurePath) -> Place:
    """A local path, or an address where the value looks like one.

    A `Path` that was made of an address has lost one of its slashes; it is recognised all the same, so that
    `s3://bucket/x` never becomes the folder `s3:` here.

    Raises:
        ValueError: it is an address of a kind that is refused.
    """
    if isinstance(value, Address):
        return value
    found = _SCHEME.match(str(value))
    if found is None:
        return Path(value)
    return Address(value if isinstance(value, str) else f"{found[1]}://{str(value)[found.end() :]}")


def places(values: str | PurePath | Sequence[str | PurePath]) -> tuple[Place, ...]:
    """Each as `place`; a text or a path alone is one place, and not its letters.

    Raises:
        ValueError: one is an address of a kind that is refused.
    """
    alone = [values] if isinstance(values, str | PurePath) else values
    return tuple(place(value) for value in alone)


def local(value: str | PurePath, what: str) -> Path:
    """A local path, where nothing else will do; `what` needs it, as the beginning of a sentence.

    Raises:
        ValueError: it is an address.
    """
    found = _SCHEME.match(str(value))
    if found is None:
        return Path(value)
    raise ValueError(f"{what} must be a local path, but this is a URL ({found[1]}://...)")
