"""Reads `profile.json`, and refuses one of other data."""

from collections.abc import Mapping
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import read_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.profiling.log_outline import data_hash
from nemo_vfm.sparse.log_chunk import LogSource

FORMAT = "nemo_vfm.profile/1"
NAME = "profile.json"


def load_profile(path: Path, *, of: LogSource | None = None) -> Mapping[str, Json]:
    """The profile in a file; docs/how-to/recommenders/profiles.md lists its keys.

    Args:
        of: the log that it must be of; None takes any.
    """
    if not path.is_file():
        raise UserError(f"there is no profile {path}; make one with recipes/recommendation/profile.yaml")
    try:
        found = read_json(path)
        known, samples = found["data"]["hash"], found["data"]["samples"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a profile, or is damaged ({type(error).__name__}: {error}); make it again"
        ) from error
    if found.get("format") != FORMAT:
        raise DataError(f"{path} has the format {found.get('format')!r}, expected {FORMAT!r}; make it again")
    if of is not None and (expected := data_hash(of)) != known:
        raise UserError(
            f"{path} is the profile of another log, of {samples:,} samples with the hash {known[:12]}; this log "
            f"has the hash {expected[:12]}. Profile this log, or name the log that was profiled."
        )
    return dict(found)
