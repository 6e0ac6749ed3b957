"""Submits recipes to a cluster as Slurm jobs and follows them; of nemo_vfm it imports `config` and `core`."""

TYPE_CHECKING = False  # nothing is imported before `__main__` has put the search path right
if TYPE_CHECKING:
    from launcher.python_api import Submitted as Submitted
    from launcher.python_api import submit as submit


def __getattr__(name: str) -> object:
    """`from launcher import submit`, imported when it is asked for."""
    if name not in ("submit", "Submitted"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from launcher import python_api

    return getattr(python_api, name)
