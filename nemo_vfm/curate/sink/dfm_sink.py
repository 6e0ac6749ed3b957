"""Exports a flat folder of videos, each with a JSON beside it, as NeMo DFM's preparation scripts read it.

Read in its `examples/common/wan/prepare_dataset_wan.py` (NAME.mp4 and NAME.json with `caption`) and
`dfm/src/automodel/utils/data/preprocess_dataset.py` (meta.json, `end_frame` inclusive), 7cb7634.
"""

from pathlib import Path

from nemo_vfm.core.storage.files import write_bytes, write_json
from nemo_vfm.curate.sink.export import ExportResult, caption_of, clips, note_captions
from nemo_vfm.data.shards.shard_files import ShardSet


class Dfm:
    """Films and captions for DFM, whose own scripts encode them.

    What DFM trains on are tars of `.pth` and `.pickle` members, which we do not write: its scripts make them of this
    folder, with `--output_format energon` for Megatron and `automodel` for AutoModel.

    Args:
        min_frames: shorter clips are left out; in frames.
    """

    def __init__(self, *, min_frames: int = 1) -> None:
        if min_frames < 1:
            raise ValueError(f"min_frames is {min_frames}, but it must be at least 1")
        self.min_frames = min_frames

    def write(self, shards: ShardSet, folder: Path, at: Path) -> ExportResult:
        written, items = ExportResult(), []
        for entry in clips(shards, written):
            if entry.index["num_frames"] < self.min_frames:
                written.left_out[f"shorter than {self.min_frames} frames"] += 1
                continue
            write_bytes(folder / f"{entry.key}.mp4", shards.read(entry, "mp4"))
            write_json(folder / f"{entry.key}.json", {"caption": caption_of(entry)})
            items.append({
                "file_name": f"{entry.key}.mp4", "width": entry.index["width"], "height": entry.index["height"],
                "start_frame": 0, "end_frame": entry.index["num_frames"] - 1, "caption": caption_of(entry),
            })  # fmt: skip
        write_json(folder / "meta.json", items)
        written.written = len(items)
        written.notes.append(
            f"DFM's script encodes them: python examples/common/wan/prepare_dataset_wan.py --video_folder "
            f"{at.absolute()} --output_dir DIR --output_format energon"
        )
        silent = sum(not item["caption"].strip() for item in items)
        note_captions(written, silent, "some of DFM's scripts skip them")
        return written
