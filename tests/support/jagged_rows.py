"""Makes jagged tensors of lists of lists, and lists of jagged tensors."""

import torch

from nemo_vfm.sparse.jagged import Jagged


def jagged(rows: list[list[int]]) -> Jagged:
    flat = [value for row in rows for value in row]
    return Jagged(torch.tensor(flat, dtype=torch.int64), torch.tensor([*map(len, rows)], dtype=torch.int64))


def lists(found: Jagged) -> list[list[int]]:
    return [part.tolist() for part in found.values_N.split(found.lengths_B.tolist())] if len(found) else []
