"""Makes batches of random ids for embedding tables."""

import torch

from nemo_vfm.sparse.jagged import Jagged


def random_jagged(rows: int, batch: int, seed: int, longest: int = 6, weighted: bool = False) -> Jagged:
    """Between none and `longest` ids a sample; few rows give many duplicates."""
    numbers = torch.Generator().manual_seed(seed)
    lengths_B = torch.randint(0, longest + 1, (batch,), generator=numbers)
    values_N = torch.randint(0, rows, (int(lengths_B.sum()),), generator=numbers)
    weights_N = torch.rand(len(values_N), generator=numbers) if weighted else None
    return Jagged(values_N, lengths_B, weights_N)
