"""Records how a run was made: versions, commit, hash, seed, hardware."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from nemo_vfm.core import __version__
from nemo_vfm.core.secret import conceal_keys
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.json_value import Json

SCHEMA = "nemo_vfm.run/1"
_PACKAGES = (
    "torch",
    "lightning",
    "numpy",
    "pydantic",
    "PyYAML",
    "webdataset",
    "av",
    "decord",
    "safetensors",
    "pyarrow",
)


def manifest(recipe: str, seed: int, steps: Iterable[str] = (), source: Path | None = None) -> Json:
    """The content of `manifest.json`.

    Args:
        recipe: the composed recipe's text.
        steps: of a workflow, their names in order.
        source: the recipe's file.
    """
    from nemo_vfm.config.roots import header
    from nemo_vfm.core import device

    return {
        "schema": SCHEMA,
        "recipe": source.stem if source else None,
        "purpose": conceal_keys(header(source).title) if source else None,
        "created": now(),
        "recipe_sha256": sha256_text(recipe),
        "seed": seed,
        "steps": list(steps),
        "commit": _commit(),
        "versions": {"nemo_vfm": __version__, "python": platform.python_version(), **_versions()},
        "hardware": {"device": device.describe(), "cpus": os.cpu_count(), "memory_gb": _memory_gb(),
                     "system": f"{platform.system()} {platform.release()}"},
    }  # fmt: skip


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None


def _commit() -> str | None:
    """The commit of the checkout that runs, with `+changes` where files differ from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    try:
        commit = _git(git, root, "rev-parse", "HEAD")
        return commit + ("+changes" if _git(git, root, "status", "--porcelain", "--untracked-files=no") else "")
    except (subprocess.SubprocessError, OSError):
        return None


def _git(git: str, root: Path, *words: str) -> str:
    # An absolute program and fixed words: nothing of the recipe reaches this line.
    result = subprocess.run([git, "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=20)  # noqa: S603
    return result.stdout.strip()
