"""Converts vectors to text that a table or a cache can hold, and back. N vectors, D wide."""

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def as_text(vector_D: NDArray[np.float32]) -> str:
    """Base64 of float16: the last digits of a float32 differ from machine to machine and say nothing."""
    if vector_D.ndim != 1 or not np.isfinite(vector_D).all():
        raise ValueError(f"a vector of shape {vector_D.shape} must have one axis and finite numbers")
    return base64.b64encode(vector_D.astype("<f2").tobytes()).decode()


def as_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """(N, D), lengths as they were, at most 1."""
    rows = np.stack([np.frombuffer(base64.b64decode(text), dtype="<f2") for text in texts]).astype(np.float32)
    # float16 may have made a unit vector a little longer.
    return np.asarray(rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True)), dtype=np.float32)
