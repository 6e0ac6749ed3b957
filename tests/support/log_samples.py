"""Makes chunks of logs of random sessions, and lists their samples one by one."""

import torch

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from tests.support.jagged_rows import lists

Sample = tuple[object, ...]


def random_log(num_rows: int, seed: int = 0, sessions: int = 40) -> LogChunk:
    """Samples of sessions in any order, with a dense feature, a label and two features of 0 to 3 ids."""
    draw = torch.Generator().manual_seed(seed)

    def integers(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=draw)

    def feature() -> Jagged:
        lengths = integers(4, num_rows)
        return Jagged(integers(1000, int(lengths.sum())), lengths)

    return LogChunk(
        torch.arange(num_rows), integers(sessions, num_rows) * 7919 - 100, integers(50, num_rows),
        {"price": torch.rand(num_rows, generator=draw)}, {"click": integers(2, num_rows).float()},
        {"item": feature(), "user": feature()},
    )  # fmt: skip


def samples_of(chunk: LogChunk) -> list[Sample]:
    """Everything of each sample: its number, session, time, dense features, labels, weight and features, by name."""
    columns = [chunk.ids_B.tolist(), chunk.session_B.tolist(), chunk.time_B.tolist()]
    columns += [chunk.dense[name].tolist() for name in sorted(chunk.dense)]
    columns += [chunk.labels[name].tolist() for name in sorted(chunk.labels)]
    columns += [] if chunk.weight_B is None else [chunk.weight_B.tolist()]
    columns += [[tuple(row) for row in lists(chunk.features[name])] for name in sorted(chunk.features)]
    return [*zip(*columns, strict=True)]
