"""Writes a ranker with its tables as a program of torch.export, which torch alone runs.

Shape letters: B samples, F dense features, N values, R rows of a table, D width, L labels.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.models.recommenders.ranker import Ranker
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables

PROGRAM = "ranker.pt2"
RowFormat = Literal["fp32", "int8"]


def write_ranker(model: nn.Module, folder: Path, rows: RowFormat) -> int:
    """Write `ranker.pt2`, whose call `(dense_BF, {feature: values_N}, {feature: lengths_B})` gives scores (B, L).

    Any number of samples from one on, and of values, will do. Nothing is checked: an id that is no row is an error of
    torch's, and a missing dense number of a model with `missing: refuse` makes the score NaN.

    Args:
        model: with its weights, on the CPU; it is changed and cannot be trained any more.
        rows: int8 stores a scale for each row, and takes a quarter of the bytes.

    Returns:
        bytes of the file.
    """
    if not isinstance(model, Ranker):
        raise UserError(f"{type(model).__name__} has no embedding tables; only rankers such as DLRM become a program")
    names, dense = model.features(), model.input.dense
    lengths = torch.tensor([2, 1, 1])  # three samples, since sizes of 0 and 1 would become part of the program
    example = (torch.zeros(3, dense), {name: torch.zeros(4, dtype=torch.int64) for name in names},
               {name: lengths.clone() for name in names})  # fmt: skip
    samples = torch.export.Dim("samples", min=1)
    dynamic = ({0: samples}, {name: {0: torch.export.Dim.DYNAMIC} for name in names},
               {name: {0: samples} for name in names})  # fmt: skip
    program = torch.export.export(
        _RankerProgram(model.float().eval(), rows), example, dynamic_shapes=dynamic, strict=False
    )
    program.example_inputs = None  # torch would write them as a pickle; all else is numbers and JSON
    torch.export.save(program, folder / PROGRAM)
    return (folder / PROGRAM).stat().st_size


class _RankerProgram(nn.Module):
    def __init__(self, model: nn.Module, rows: RowFormat) -> None:
        super().__init__()
        assert isinstance(model.tables, FusedTables)
        model.tables = _StaticTables(model.tables, rows)
        self.model = model

    def forward(self, dense_BF: Tensor, values: Mapping[str, Tensor], lengths: Mapping[str, Tensor]) -> Tensor:
        samples = dense_BF.shape[0]
        features = {name: Jagged(values[name], lengths[name]) for name in values}
        ids_B = torch.zeros(samples, dtype=torch.int64, device=dense_BF.device)
        batch = FeatureBatch(0, ids_B, torch.ones(samples, device=dense_BF.device), dense_BF, {}, features)
        scores: Tensor = self.model(batch).sigmoid()
        return scores


class _StaticTables(nn.Module):
    """Stands for `FusedTables` with rows as buffers; int8 rows r have a scale s of their own: row = r s."""

    def __init__(self, fused: FusedTables, rows: RowFormat) -> None:
        super().__init__()
        self.tables = fused.tables
        self.table_of = {feature: n for n, spec in enumerate(fused.tables.values()) for feature in spec.features}
        self.pooling = [spec.pooling for spec in fused.tables.values()]
        for number, name in enumerate(fused.tables):
            rows_RD = fused.state()[f"{name}.weight"].float()
            scale_R1 = rows_RD.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
            narrow_RD = (rows_RD / scale_R1).round().to(torch.int8)
            self.register_buffer(f"rows_{number}", narrow_RD if rows == "int8" else rows_RD.clone())
            self.register_buffer(f"scale_{number}", scale_R1 if rows == "int8" else None)

    def lookup(self, features: Mapping[str, Jagged]) -> dict[str, Tensor]:
        """See `FusedTables.lookup`, without weights of values."""
        found = {}
        for feature, ids in features.items():
            table = self.table_of[feature]
            rows_RD, scale_R1 = self.get_buffer(f"rows_{table}"), getattr(self, f"scale_{table}")
            vectors_ND = rows_RD.index_select(0, ids.values_N).float()
            if scale_R1 is not None:
                vectors_ND = vectors_ND * scale_R1.index_select(0, ids.values_N)
            if self.pooling[table] == "sequence":
                found[feature] = vectors_ND
                continue
            samples, lengths_B1 = ids.lengths_B.shape[0], ids.lengths_B[:, None]
            owner_N = torch.repeat_interleave(
                torch.arange(samples, device=vectors_ND.device), ids.lengths_B, output_size=vectors_ND.shape[0]
            )
            sums_BD = vectors_ND.new_zeros(samples, vectors_ND.shape[1]).index_add(0, owner_N, vectors_ND)
            found[feature] = sums_BD / lengths_B1.clamp(min=1) if self.pooling[table] == "mean" else sums_BD
        return found
