"""Exports `clips/`, `metas/v0/` and `summary.json`, as cosmos-curate's sharding pipeline reads them.

Read in its `pipelines/video/utils/video_pipe_input.py` and `sharding_pipeline.py` (29f1358): the summary names the
clips of each video, and each clip's JSON says where its mp4 file is.
"""

import json
import uuid
from fractions import Fraction
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import write_bytes, write_json
from nemo_vfm.curate.sink.export import ExportResult, caption_of, clips, note_captions
from nemo_vfm.data.shards.shard_files import ShardSet

_SHORTEST_S = 5.0  # its lowest bin of durations; it drops what is shorter with one line in a log


class CosmosCurate:
    """A finished split of cosmos-curate, for its `shard` pipeline. Its `dedup` wants embeddings, which are not written:
    remove duplicates here, by `NearDuplicate` or `recipes/curation/dedup.yaml`.

    The films are named by absolute paths, as cosmos-curate writes them: move the folder and they are lost.

    Args:
        captioner: whose caption it is said to be; `shard --captioning-algorithm` names the same. Ours keep saying who
            wrote them in our own shards alone.
        version: folder of the JSON files, `shard --annotation-version`.
    """

    def __init__(self, *, captioner: str = "qwen", version: str = "v0") -> None:
        for name, value in (("captioner", captioner), ("version", version)):
            if not value.isidentifier():
                raise ValueError(f"{name} must be a word of letters, digits and _, got {value!r}")
        self.captioner, self.version = captioner, version

    def write(self, shards: ShardSet, folder: Path, at: Path) -> ExportResult:
        written, short, silent = ExportResult(), 0, 0
        videos: dict[str, list[str]] = {}
        for entry in clips(shards, written):
            if len(entry.key) != 32 or set(entry.key) - set("0123456789abcdef"):
                raise UserError(f"sample {entry.key} is not a clip of a curation; cosmos-curate names clips by UUIDs")
            name = str(uuid.UUID(entry.key))
            film = shards.read(entry, "mp4")
            write_bytes(folder / "clips" / f"{name}.mp4", film)
            # What the sample's JSON says; nothing where there is none, or it is damaged.
            try:
                found = json.loads(shards.read(entry, "json")) if "json" in entry.members else {}
            except (ValueError, RecursionError):
                found = {}
            facts = found if isinstance(found, dict) else {}
            index, fps, text = entry.index, entry.index["fps"], caption_of(entry)
            try:  # when the clip begins and ends in its source
                base = Fraction(facts["time_base"])
                span_s = [float(facts["pts_start"] * base), float(facts["pts_end"] * base)]
            except (KeyError, TypeError, ValueError, ArithmeticError):
                span_s = [0.0, index["num_frames"] / fps]
            window = {"start_frame": 0, "end_frame": index["num_frames"], f"{self.captioner}_caption": text}
            meta = {
                "span_uuid": name, "source_video": str(index.get("source", "")), "duration_span": span_s,
                "width_source": index["width"], "height_source": index["height"], "framerate_source": fps,
                "clip_location": str(at.absolute() / "clips" / f"{name}.mp4"),
                "width": index["width"], "height": index["height"], "framerate": fps,
                "num_frames": index["num_frames"], "video_codec": "h264", "num_bytes": len(film),
                "errors": [], "windows": [window], "filtered_windows": [], "valid": True, "has_caption": bool(text),
            }  # fmt: skip
            write_json(folder / "metas" / self.version / f"{name}.json", meta)
            videos.setdefault(meta["source_video"], []).append(name)
            written.written += 1
            short += index["num_frames"] / fps < _SHORTEST_S
            silent += not text.strip()
        write_json(folder / "summary.json", {video: {"clips": names} for video, names in sorted(videos.items())})
        if short:
            written.notes.append(f"{short} clips last less than {_SHORTEST_S:g} s: its shard pipeline drops them")
        note_captions(written, silent, "it embeds an empty text for them")
        return written
