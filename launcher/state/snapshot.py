"""Copies the working tree of a repository by content, so that a job runs this code whatever is edited later.

The copy holds files that git tracks and files that it does not ignore, but never output of runs or files that hold
keys, which are recognised by name and by content. The hash covers names, contents and the executable bit, but neither
times nor read permissions.
"""

import codecs
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from launcher.state import git
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.key_shapes import shape, token
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.job import LAUNCH, MANIFEST, RECIPE

MAX_BYTES = 64 << 20
MAX_FILES = 50_000
_NAMED = 5  # of the largest files
_RUN = ({f"{LAUNCH}/launch.json"}, {RECIPE, MANIFEST})  # what tells a run folder


@dataclass(frozen=True, slots=True)
class TreeFile:
    """One file of the tree."""

    content: bytes  #: its bytes; of a link, where it points to
    mode: int  #: permission bits; 0 for a link

    def digest(self) -> str:
        """Of content and kind, as 64 hexadecimal digits."""
        kind = b"link" if not self.mode else b"program" if self.mode & 0o100 else b"file"
        return hashlib.sha256(kind + b"\0" + self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Code:
    """A working tree."""

    root: Path | None  #: where it lies; None where nothing is taken
    commit: str | None  #: the last one, with `+changes` where files differ from it; None without git
    files: Mapping[str, TreeFile]  #: by their path below the root, in order of names
    why: str  #: what was done, and if nothing was taken why
    untracked: tuple[str, ...] = ()  #: of these files, those that git does not track
    left: Mapping[str, str] = field(default_factory=dict)  #: what stays behind since it holds keys: path -> what it is

    @property
    def num_bytes(self) -> int:
        return sum(len(one.content) for one in self.files.values())

    def listing(self) -> str:
        """A line each: digest and path. Two trees are the same where this is."""
        # A name may hold a line break, or bytes that are no text.
        names = (os.fsencode(path).decode("utf-8", "backslashreplace").replace("\n", "\\n") for path in self.files)
        return "".join(f"{one.digest()}  {name}\n" for name, one in zip(names, self.files.values(), strict=True))

    def hash(self) -> str:
        """Of the whole tree; empty where nothing is taken."""
        return sha256_text(self.listing()) if self.files else ""

    def write(self, folder: Path) -> None:
        """Put the tree there; whatever was there is replaced. Only the owner may look into it."""
        fresh = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True, mode=0o700)
        for path, one in self.files.items():
            put(fresh / path, one)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.replace(folder)


def nothing(why: str) -> Code:
    """No code, and why."""
    return Code(None, None, {}, why)


def take(folder: Path, leave_out: Sequence[Path] = ()) -> Code:
    """The working tree that a folder belongs to.

    Args:
        leave_out: folders that runs write into, whether they exist already or not.
    """
    root = git.root_of(folder)
    if root is None:
        return nothing(f"{folder} is not in a git repository, so no code is copied: the installed packages run")
    listed = {path: known for path, known in _list_files(root).items()
              if not any((root / path).is_relative_to(other) for other in leave_out)}  # fmt: skip
    _require_small(root, list(listed))
    whole = Code(root, None, {path: _read(root, path) for path in sorted(listed)}, "")
    code = without_keys(whole)
    number = git.head(root)
    changed = number is not None and _differs(root, code.files, code.left)
    commit = f"{number}+changes" if changed else number
    of = f"commit {number[:12]}{' and changes' if changed else ''}" if number is not None else "without a commit yet"
    return replace(code, commit=commit, why=f"{len(code.files)} files of {root}, {of}",
                   untracked=tuple(path for path in code.files if not listed[path]))  # fmt: skip


def without_keys(code: Code) -> Code:
    """The same tree; files that hold keys stay behind."""
    left = {path: words for path, one in code.files.items() if (words := what_it_is(path, one.content))}
    return replace(code, files={path: one for path, one in code.files.items() if path not in left}, left=left)


def read_copy(folder: Path, commit: str | None) -> Code:
    """What `Code.write` has put there."""
    paths = [
        str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()
    ]
    _require_small(folder, paths)
    files = {path: _read(folder, path) for path in sorted(paths)}
    return Code(folder, commit, files, f"{len(files)} files, as they were kept in {folder}")


@cache
def packages() -> str:
    """Every installed package with its version, a line each."""
    found = {f"{one.name}=={one.version}" for one in distributions() if one.name}
    return "".join(f"{line}\n" for line in sorted(found, key=str.lower))


def requirements(*, with_package: bool) -> tuple[str, ...]:
    """What nemo_vfm declares that it needs, with its extras that are installed here, and if asked for it itself."""
    try:
        own = distribution("nemo_vfm")
    except PackageNotFoundError as error:
        raise UserError("cluster.container.setup: pip installs what the installed nemo_vfm requires, but nemo_vfm is "
                        "not installed here; run pip install -e .") from error  # fmt: skip
    declared = [Requirement(text) for text in own.requires or ()]
    extras = [extra for extra in own.metadata.get_all("Provides-Extra") or () if extra != "dev"
              and all(_is_here(one) for one in declared if _is_of(one, extra))]  # fmt: skip
    found = {str(one) for one in declared if not _is_optional(one)}
    for one in declared:
        if any(_is_of(one, extra) for extra in extras):
            one.marker = None
            found.add(str(one))
    return (*sorted(found), *([f"nemo_vfm=={own.version}"] if with_package else []))


def _is_optional(one: Requirement) -> bool:
    return one.marker is not None and "extra" in str(one.marker)


def _is_of(one: Requirement, extra: str) -> bool:
    return _is_optional(one) and one.marker is not None and one.marker.evaluate({"extra": extra})


def _is_here(one: Requirement) -> bool:
    try:
        return one.specifier.contains(version(one.name), prereleases=True)
    except PackageNotFoundError:
        return False


def read_listing(text: str) -> dict[str, str]:
    """What `Code.listing` wrote, as digests by path."""
    return {path: digest for digest, _, path in (line.partition("  ") for line in text.splitlines())}


def _list_files(root: Path, prefix: str = "") -> dict[str, bool]:
    """What git tracks (True) and what it does not ignore (False); a repository inside this one is listed by itself."""
    found: dict[str, bool] = {}
    fresh = []
    for path in git.names(root, "--others", "--exclude-standard"):
        above = list((root / path).parents)
        folders = above[: above.index(root)] if root in above else []
        # A file that git does not know, in a run folder, is a run's output.
        if not any(all((folder / name).is_file() for name in names) for folder in folders for names in _RUN):
            fresh.append(path)
    for path, tracked in {**dict.fromkeys(fresh, False), **dict.fromkeys(git.names(root, "--cached"), True)}.items():
        inside = root / path
        # Where a folder on the way has become a link, what was tracked there is deleted for git.
        if any(one.is_symlink() for one in inside.parents if one != root and one.is_relative_to(root)):
            continue
        if inside.is_dir() and not inside.is_symlink():
            found |= _list_files(inside, f"{prefix}{path.rstrip('/')}/") if (inside / ".git").exists() else {}
        elif os.path.lexists(inside):  # a tracked file may have been deleted
            found[f"{prefix}{path}"] = tracked
    return found


def _differs(root: Path, files: Mapping[str, TreeFile], left: Mapping[str, str]) -> bool:
    """What stays behind is not compared, nor what lies in repositories inside."""
    then = {path: entry for path, entry in git.entries(root).items() if entry.mode != "160000"}
    tracked = set(git.names(root, "--cached"))
    added = any(path not in then and path in files for path in tracked)
    return added or any(
        not entry.holds(files[path].content, files[path].mode) if path in files else not os.path.lexists(root / path)
        for path, entry in then.items() if path not in left
    )  # fmt: skip


def _require_small(root: Path, paths: Sequence[str]) -> None:
    if len(paths) > MAX_FILES:
        raise UserError(f"the working tree of {root} has {len(paths):,} files, and at most {MAX_FILES:,} are "
                        f"copied. List what is not code in .gitignore, or copy none: --no-code")  # fmt: skip
    sizes = {path: (root / path).lstat().st_size for path in paths}
    if (total := sum(sizes.values())) > MAX_BYTES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:_NAMED]
        named = ", ".join(f"{path} ({sizes[path] / 1e6:.1f} MB)" for path in largest)
        raise UserError(
            f"the working tree of {root} has {total / 1e6:.0f} MB, and at most {MAX_BYTES / 1e6:.0f} MB are "
            f"copied; its largest files are {named}. List what is not code in .gitignore, or copy none: --no-code"
        )


def _read(root: Path, path: str) -> TreeFile:
    file = root / path
    try:
        if file.is_symlink():
            # A link that leads out of the tree is another file on another day, and none at all on another machine.
            to = file.readlink()
            lexical = Path(os.path.normpath(file.parent / to))
            resolved = file.resolve().is_relative_to(root.resolve())
            if to.is_absolute() or not lexical.is_relative_to(root) or not resolved:
                raise UserError(
                    f"{path} is a link to {to}, outside the working tree. List it in .gitignore if it is not code, "
                    f"point it inside the tree by a relative path, or copy no code: --no-code"
                )
            return TreeFile(os.fsencode(to), 0)
        # A file that is none, such as a FIFO, would be read for ever; a link put there meanwhile is not followed.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read(MAX_BYTES + 1) if stat.S_ISREG(mode) else b""
        if not stat.S_ISREG(mode):
            raise UserError(f"{file} cannot be copied: it is not a regular file. Remove it, or copy no code: --no-code")
        if len(content) > MAX_BYTES:
            raise UserError(f"{file} is still growing, beyond {MAX_BYTES / 1e6:.0f} MB; list it in .gitignore")
        return TreeFile(content, stat.S_IMODE(mode) & 0o777 | 0o400)
    except OSError as error:
        raise UserError(f"{file} cannot be copied: {error.strerror}; list it in .gitignore if it is not code") \
            from error  # fmt: skip


def put(path: Path, one: TreeFile) -> None:
    """Write a file where none is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not one.mode:
        path.symlink_to(os.fsdecode(one.content))
        return
    path.write_bytes(one.content)
    path.chmod(one.mode)


#: Patterns for one part of a path, in lower case -> what such a file or folder is.
_PARTS = {
    ".env*": "an environment file", "*.env": "an environment file",
    ".ssh": "a folder of keys", ".gnupg": "a folder of keys", ".aws": "a folder of keys", ".azure": "a folder of keys",
    ".gcloud": "a folder of keys", ".kube": "a folder of keys",
}  # fmt: skip
#: Patterns for a file's name, in lower case.
_NAMES = {
    **dict.fromkeys(("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx"), "a key file"),
    **dict.fromkeys((f"id_{kind}{end}" for kind in ("rsa", "dsa", "ecdsa", "ed25519", "ecdsa_sk", "ed25519_sk")
                     for end in ("", ".bak", ".old")), "a private key"),
    **dict.fromkeys((".netrc", "_netrc", ".git-credentials", ".pgpass", ".my.cnf", ".htpasswd", ".dockercfg", ".s3cfg",
                     ".boto", "rclone.conf", "kubeconfig", "kubeconfig.*", "*.kubeconfig", "kaggle.json",
                     "credentials", "credentials.json", "credentials.csv", "client_secret*.json",
                     "application_default_credentials.json", "service-account*.json", "service_account*.json",
                     "secrets.yaml", "secrets.yml", "secrets.json", "secrets.toml"), "a file of credentials"),
}  # fmt: skip
_PATHS = (".docker/config.json", ".huggingface/token", "huggingface/token")
#: These hold settings as often as keys, so their contents decide.
_SOMETIMES = (".npmrc", ".pypirc", ".yarnrc*", "pip.conf", ".condarc", "config.json", ".gitconfig")
_ASSIGNED = re.compile(rb"(?im)^[^#;\n]*(?:_auth(?:token)?|password|passwd|token|secret)\"?\s*[=:]\s*\S+")
#: A real block: words about one, such as a pattern in a program, have no letters of base64 behind their line.
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:[\s\"',]|\\r|\\n)+"
    rb"(?:[\w-]+: [^\n]*\n\s*)*[A-Za-z0-9+/]{16}"
)
_LOOKED_AT_BYTES = 1 << 20


def what_it_is(path: str, content: bytes) -> str:
    """What makes a file one that holds keys, in words; empty where nothing does. Its path is below the tree's root."""
    parts = PurePosixPath(path.lower()).parts
    for pattern, words in _PARTS.items():
        if any(fnmatchcase(part, pattern) for part in parts):
            return words
    name = parts[-1] if parts else ""
    found = next((words for pattern, words in _NAMES.items() if fnmatchcase(name, pattern)), "")
    if found or any(f"/{'/'.join(parts)}".endswith(f"/{end}") for end in _PATHS):
        return found or "a file of credentials"
    begin = content[:_LOOKED_AT_BYTES]
    if _PRIVATE_KEY.search(begin):
        return "a private key"
    if any(fnmatchcase(name, pattern) for pattern in _SOMETIMES):
        is_config = name == "config.json"  # as often a model's
        if shape(begin.decode(errors="replace")) or (not is_config and _ASSIGNED.search(begin)):
            return "a file of credentials"
    return token(_text(content)) if len(content) <= _LOOKED_AT_BYTES else ""


def _text(content: bytes) -> str:
    """Empty where it is none; a Windows shell writes UTF-16, which begins with a mark."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace")
    return "" if b"\0" in content else content.decode(errors="replace")
