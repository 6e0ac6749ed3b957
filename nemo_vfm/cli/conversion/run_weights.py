"""Writes a run's weights as one safetensors file, or its ranker as a program of torch.export."""

import shutil
from collections.abc import Sequence
from pathlib import Path


def run_of(source: Path) -> Path:
    """The run whose checkpoints these are."""
    within = [folder for folder in (source, *source.resolve().parents) if folder.name == "checkpoints"]
    return within[0].parent if within else source


def write_one_file(source: Path, target: Path, group: str | None) -> str:
    """Write the weights, a tensor at a time; one sentence about them.

    Args:
        source: a run folder, a folder of checkpoints (the newest whole one is taken), or a checkpoint.
        group: model, ema or optimizer; None takes ema where there is one, else model.
    """
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import write_json
    from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_one_file
    from nemo_vfm.parallel.checkpoint.checkpoint_reader import SavedTensors

    saved = checkpoint.open_checkpoint(source)
    group = group or ("ema" if "ema" in saved.groups else "model")
    weights = checkpoint.weights_of(saved, group)
    assert isinstance(weights, SavedTensors), "a checkpoint of a path is read when asked for"
    checkpoint.require_room(target, weights.num_bytes())
    about = {"group": group, "step": str(saved.step), "run": saved.run}
    try:
        written = checkpoint_one_file.write(target / checkpoint_one_file.NAME, weights, about)
    except OSError as error:
        raise UserError(f"{target.parent} cannot hold the weights ({error.strerror or error}).") from error
    others = sorted(saved.groups.keys() - {group})
    write_json(target / checkpoint_one_file.ABOUT, {
        "schema": "nemo_vfm.convert/1",
        "source": {"name": source.name, "format": "nemo_vfm.checkpoint", "sha256": saved.sha256[group], **about},
        "model_sha256": written["sha256"], "not_carried_over": others,
    })  # fmt: skip
    left = f"; not carried over: {', '.join(others)}" if others else ""
    return f"the {group} weights of step {saved.step}: {len(weights)} tensors, {weights.num_values():,} numbers{left}"


def export_ranker(
    source: Path, target: Path, *, key: str | None, dtype: str | None, trust: Sequence[str], allow_host: Sequence[str]
) -> str:  # fmt: skip
    """Write `ranker.pt2`, `ranker.json`, and the vocabulary of the table that it was trained on, if there is one.

    Args:
        source: a run folder, a folder of checkpoints or a checkpoint below one.
        key: model or ema; None takes ema where there is one.
        dtype: of rows of tables: fp32 or int8.
    """
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import write_json
    from nemo_vfm.explain.step_report import load_training
    from nemo_vfm.models.recommenders.ranker import Ranker
    from nemo_vfm.models.recommenders.ranker_program import RowFormat, write_ranker
    from nemo_vfm.parallel.checkpoint import checkpoint
    from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
    from nemo_vfm.recsys.click import Click
    from nemo_vfm.recsys.feature_table.table_manifest import NAME, read_manifest
    from nemo_vfm.recsys.feature_table_data import FeatureTableData
    from nemo_vfm.recsys.log_import.known_ids import VOCABULARY

    if dtype not in (None, "fp32", "int8"):
        raise UserError(f"--dtype {dtype}: rows of tables are written as fp32 or int8")
    job, _, _ = load_training(run_of(source), trust, allow_host)
    model, saved = job.model(), checkpoint.open_checkpoint(source)
    if not isinstance(model, Ranker) or not isinstance(job.task, Click):
        raise UserError(
            f"{source} trained {type(model).__name__}, but only rankers such as DLRM can be exported as a program"
        )
    group = key or ("ema" if "ema" in saved.groups else "model")
    fill(model.state_dict(), checkpoint.weights_of(saved, group))
    rows: RowFormat = "int8" if dtype == "int8" else "fp32"
    tables = {name: spec.rows for name, spec in model.tables.tables.items()}
    of_table: dict[str, object] = {}  # names of dense numbers and the hash of its ids; the vocabulary lies beside it
    if isinstance(job.data, FeatureTableData) and (job.data.folder / NAME).is_file():
        manifest, vocabulary = read_manifest(job.data.folder), job.data.folder.parent / VOCABULARY
        if vocabulary.is_file():
            shutil.copyfile(vocabulary, target / VOCABULARY)
        names = manifest.schema.dense if job.data.dense is None else job.data.dense
        known = VOCABULARY if vocabulary.is_file() else None
        of_table = {"dense_names": [*names], "ids": manifest.ids, "vocabulary": known}
    about = {
        "labels": [*job.task.labels], "features": [*model.features()], "dense": model.input.dense, "rows": rows,
        "tables": tables, "step": saved.step, "weights_sha256": saved.sha256[group], **of_table,
    }  # fmt: skip
    size = write_ranker(model, target, rows)
    write_json(target / "ranker.json", about)
    return f"the {group} weights of step {saved.step}: {len(tables)} tables in {rows}, {size / 1e6:,.1f} MB"
