"""Exports `videos/`, `metas/` and a note about `t5_xxl/`, as Cosmos-Predict2's post-training reads them.

Read in its `cosmos_predict2/data/dataset_video.py` and `scripts/get_t5_embeddings.py` (661da47): a clip is
`videos/X.mp4` and counts only where `t5_xxl/X.pickle` lies beside it, which that script makes of `metas/X.txt`.
"""

from pathlib import Path

from nemo_vfm.core.storage.files import write_bytes, write_text
from nemo_vfm.curate.sink.export import ExportResult, caption_of, clips, note_captions
from nemo_vfm.data.shards.shard_files import ShardSet

_EMBEDDINGS = "text.safetensors"
_COMMAND = "python -m scripts.get_t5_embeddings --dataset_path {folder}"


class CosmosPredict2:
    """The folder of videos and captions that Cosmos-Predict2 is post-trained on.

    Its loader unpickles the text embeddings, and we write no pickle: its own script makes them of the captions in
    `metas/`, and README.txt in the folder holds the command. It draws the first frame from below
    (frames - num_frames), so a clip of exactly num_frames fails there: one more is needed.

    Args:
        num_frames: what the training takes of each clip, in frames; its configs say 93.
    """

    def __init__(self, *, num_frames: int = 93) -> None:
        if num_frames < 1:
            raise ValueError(f"num_frames is {num_frames}, but it must be at least 1")
        self.num_frames = num_frames

    def write(self, shards: ShardSet, folder: Path, at: Path) -> ExportResult:
        written, silent = ExportResult(), 0
        for name in ("videos", "metas"):
            (folder / name).mkdir()
        for entry in clips(shards, written):
            if entry.index["num_frames"] <= self.num_frames:
                written.left_out[f"shorter than {self.num_frames + 1} frames"] += 1
                continue
            write_bytes(folder / "videos" / f"{entry.key}.mp4", shards.read(entry, "mp4"))
            write_text(folder / "metas" / f"{entry.key}.txt", caption_of(entry))
            if _EMBEDDINGS in entry.members:
                write_bytes(folder / "t5_xxl" / f"{entry.key}.safetensors", shards.read(entry, _EMBEDDINGS))
            written.written += 1
            silent += not caption_of(entry).strip()
        command = _COMMAND.format(folder=at.absolute())
        written.notes.append(f"its loader sees no clip before its own script has made t5_xxl/*.pickle: {command}")
        note_captions(written, silent, "they are trained on without text")
        write_text(
            folder / "README.txt",
            f"videos/ and metas/ are what Cosmos-Predict2 asks for. Its loader skips every clip that has no\n"
            f"t5_xxl/NAME.pickle. In a checkout of cosmos-predict2, with its T5 weights downloaded, run\n\n"
            f"    {command}\n\n"
            f"and then train with dataset_dir set to this folder and num_frames={self.num_frames}. Where t5_xxl/\n"
            f"holds .safetensors files, these are the embeddings of our shards; its loader does not read them.\n",
        )
        return written
