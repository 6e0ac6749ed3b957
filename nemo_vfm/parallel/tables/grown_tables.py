"""Takes rows of embedding tables and their optimizer state from a checkpoint whose tables may have fewer rows."""

from collections.abc import Mapping

from torch import Tensor, nn

from nemo_vfm.core.log import info, warn
from nemo_vfm.parallel.checkpoint.checkpoint_reader import everywhere, put, shapes_of
from nemo_vfm.parallel.ranks.gather import Gather
from nemo_vfm.sparse.tables.fused_tables import tables_of

Shapes = Mapping[str, tuple[int, ...]]


def grown_tables(model: nn.Module, here: Shapes, there: Shapes) -> dict[str, int]:
    """The weights of tables that have more rows here, by name, and how many rows they have there.

    Args:
        here: shapes of the model's weights.
        there: of the checkpoint's.
    """
    names = [f"{module}.{table}.weight" for module, one in tables_of(model).items() for table in one.tables]
    known = [(name, here[name], there[name]) for name in names if name in here and name in there]
    found = {name: old[0] for name, new, old in known if old[0] < new[0] and old[1:] == new[1:]}
    for name, rows in found.items():
        info(f"{name.removesuffix('.weight')}: {rows:,} rows continue, {here[name][0] - rows:,} are new")
    return found


def take_table_state(model: nn.Module, saved: Mapping[str, Tensor], ranks: Gather) -> None:
    """Load what tables' optimizers know of the rows that are there; every rank must call it.

    Args:
        saved: of a checkpoint; nothing where it was of a model without tables.
    """
    there = shapes_of(saved)
    for module, tables in tables_of(model).items():
        own = {f"{module}.{name}": tensor for name, tensor in tables.optimizer_state().items()}
        shapes = everywhere(own, ranks)
        fits = own.keys() == {name for name in there if name.startswith(f"{module}.")} and all(
            len(there[name]) == len(shapes[name])
            and there[name][1:] == shapes[name][1:]
            and (not shapes[name] or there[name][0] <= shapes[name][0])
            for name in own
        )
        if not fits:
            if there:
                warn(f"the optimizer of {module} differs from the one in start_from, so its state starts from zero")
            continue
        put({name: tensor[: there[name][0]] if tensor.dim() else tensor for name, tensor in own.items()}, saved, ranks)
        tables.step = int(own[f"{module}.step"])
