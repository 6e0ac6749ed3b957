"""Provides `compose`, `build` and `run` for YAML recipes, from raw video to a trained world model.

docs/how-to/python.md describes them. Each is imported at its first use, so importing the package is quick.
"""

from typing import TYPE_CHECKING, Any

from nemo_vfm.core import __version__ as __version__

if TYPE_CHECKING:
    from nemo_vfm.runtime.python_api import build, compose, run

__all__ = ["build", "compose", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from nemo_vfm.runtime import python_api

    return getattr(python_api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
