"""Writes the weights of a run folder or a checkpoint as one safetensors file."""

from pathlib import Path


def convert(source: Path, target: Path, group: str | None) -> str:
    """Write the weights, a tensor at a time; one sentence about them.

    Args:
        source: a run folder, a folder of checkpoints (the newest whole one is taken), or a checkpoint.
        target: where `model.safetensors` and `convert.json` are to lie.
        group: model, ema or optimizer; None takes ema where there is one, else model.

    Raises:
        UserError: there is no checkpoint, or it has no such group, or the disk is too small.
    """
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import write_json
    from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_one_file
    from nemo_vfm.parallel.checkpoint.checkpoint_reader import SavedTensors

    saved = checkpoint.found(source)
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
