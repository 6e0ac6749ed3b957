"""Spills samples of a log to disk by the hash of their session, and reads neighbouring hashes back.

A run is a file with the samples of many chunks, ordered by bucket. It is whole or absent, and holds besides what its
writer wants to know after a kill. Shape letters: B samples, K buckets.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.feature_table.chunk_tensors import chunk_of, tensors_of
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_fingerprint import mix64_

#: Buckets of sessions; as many neighbours are read at once as fit into memory.
NUM_BUCKETS = 1 << 12
_ROWS, _VALUES, _STATE = "borders", "borders/", "state"


def buckets(session_B: Tensor) -> NDArray[np.uint16]:
    """The bucket of each sample's session: (B,)."""
    return (mix64_(session_B.clone()).numpy() & (NUM_BUCKETS - 1)).astype(np.uint16)


def write_run(path: Path, chunk: LogChunk, state: Json) -> None:
    """Write samples, ordered by bucket, and a state beside them."""
    from safetensors.torch import save_file

    bucket_B = buckets(chunk.session_B)
    order_B = np.argsort(bucket_B, kind="stable")
    borders = torch.from_numpy(np.searchsorted(bucket_B[order_B], np.arange(NUM_BUCKETS + 1)))
    chunk = chunk.select(torch.from_numpy(order_B))
    values = {_VALUES + name: rows.offsets[borders] for name, rows in chunk.features.items()}
    with atomic_path(path) as temporary:
        save_file({**tensors_of(chunk), **values, _ROWS: borders}, temporary, {_STATE: json.dumps(state)})


def read_state(path: Path) -> Json:
    """What `write_run` was given."""
    with _opened(path) as file:
        found: Json = json.loads(file.metadata()[_STATE])
        return found


def bucket_bytes(path: Path) -> NDArray[np.int64]:
    """Bytes of each bucket of a run in memory, at most: (K,)."""
    with _opened(path) as file:
        names, features = _names(file)
        rows_K = np.diff(file.get_tensor(_ROWS).numpy())
        bytes_K: NDArray[np.int64] = rows_K * 8 * len(names)  # of the columns, and of the lengths of features
        for name in features:
            bytes_K += np.diff(file.get_tensor(_VALUES + name).numpy()) * 12  # an id, and a weight if there is one
    return bytes_K


def read_buckets(path: Path, begin: int, end: int) -> LogChunk:
    """The samples of the buckets begin..end of a run."""
    with _opened(path) as file:
        names, features = _names(file)

        def span(name: str) -> tuple[int, int]:
            first, last = file.get_tensor(name)[[begin, end]].tolist()
            return first, last

        def part(name: str, first: int, last: int) -> Tensor:
            found: Tensor = file.get_slice(name)[first:last]
            return found

        return chunk_of(names, part, span(_ROWS), {name: span(_VALUES + name) for name in features})


def _names(file: Any) -> tuple[list[str], list[str]]:
    """Of the tensors of a chunk, and of its features."""
    names = file.keys()
    features = [name.removeprefix(_VALUES) for name in names if name.startswith(_VALUES)]
    return [name for name in names if not name.startswith(_ROWS)], features


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}. Delete the folder {path.parent} and run again.") from error
