"""Encodes clip shards to shards of latents and text embeddings, so that training never decodes a video.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.log import bar, info, warn
from nemo_vfm.core.storage.files import write_bytes, write_json
from nemo_vfm.core.storage.uri import Address, Place, place
from nemo_vfm.core.types.encoders import Codec, TextEncoder
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.curate.embed_text import say_cut
from nemo_vfm.curate.examine.findings import fingerprint
from nemo_vfm.curate.execute.ordered import map_in_order
from nemo_vfm.curate.output.write_outputs import read_marker, remove_unfinished, replaced_folder, shards_digest
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.shards.shard_files import Entry, ShardSet, ShardWriter
from nemo_vfm.data.shards.shard_upload import upload_shards
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import image_to_bucket, resize_and_crop, window_indices

DtypeName = Literal["fp32", "fp16", "bf16"]
# What is stored, not what is computed in: that is core/precision.py's.
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_MEDIA = ("mp4", "png", "jpg", "jpeg")
_MAX_FAILURES_IN_A_ROW = 20


def training_windows(
    media: bytes, *, is_image: bool, bucket: Bucket, max_windows: int
) -> Iterator[tuple[Frames, float]]:
    """Each window's frames (T, H, W, C) and its frames per second."""
    if is_image:
        yield image_to_bucket(media, bucket)
        return
    with open_video(media) as reader:
        info = reader.info()
        first, stop = info.longest_part()
        for indices in window_indices(stop - first, info.fps, bucket, max_windows):
            frames_THWC = reader.read([first + index for index in indices])
            frames_THWC = resize_and_crop(frames_THWC, bucket.width, bucket.height)
            yield frames_THWC, info.fps / bucket.stride(info.fps)


@dataclass(slots=True)
class _ClipFate:
    """The fate of one clip: its bucket, why no bucket fits, or why it failed."""

    entry: Entry
    bucket: str | None = None
    unbinned: str | None = None
    failed: str | None = None


@makes("shards", "encode.json")
class EncodeShards:
    """Brings every clip into its bucket's shape, encodes pixels and caption, and writes latent shards.

    Encoded clips are kept in `work/` until all is done, so that a killed run resumes where it stopped.

    Args:
        shards: folder of clip shards, here or in an object store.
        codec: pixels to latents.
        text_encoder: captions to embeddings.
        buckets: the shapes; training must name the same.
        dtype: how latents and embeddings are stored.
        windows_per_clip: samples cut from one clip at most, spread over its length; their keys end in -w0, -w1, ...
        samples_per_shard: samples per shard.
        copy_to: folder of an object store to which the finished shards are copied; None copies nothing.
    """

    def __init__(
        self,
        *,
        shards: Place,
        codec: Codec,
        text_encoder: TextEncoder,
        buckets: Buckets,
        dtype: DtypeName = "fp32",
        windows_per_clip: int = 1,
        samples_per_shard: int = 512,
        copy_to: Address | None = None,
    ) -> None:
        if windows_per_clip < 1 or samples_per_shard < 1:
            raise ValueError(
                f"windows_per_clip {windows_per_clip} and samples_per_shard {samples_per_shard} are below 1"
            )
        for name, bucket in buckets.buckets.items():
            # Say at once that a bucket's shape does not fit the codec, not after hours of decoding.
            try:
                codec.latent_shape(bucket.num_frames, bucket.height, bucket.width)
            except UserError:  # the codec itself cannot be built or found, whatever the bucket
                raise
            except ValueError as error:
                raise ValueError(f"bucket {name!r} does not fit the codec: {error}") from error
        self.shards, self.codec, self.text_encoder, self.buckets = (
            place(shards), codec, text_encoder, buckets,
        )  # fmt: skip
        self.copy_to = copy_to
        self.dtype, self.windows_per_clip, self.samples_per_shard = dtype, windows_per_clip, samples_per_shard

    def run(self, run: Run) -> Outcome:
        """Do the work; a second run does nothing.

        Raises:
            UserError: there are no clip shards.
            DataError: many clips in a row cannot be encoded.
            NothingKept: no clip fits a bucket.
        """
        clips = ShardSet(self.shards)
        remove_unfinished(run.folder)
        state = self._state()
        done = read_marker(run.folder / "encode.json", state)
        if done is not None and (run.folder / "shards/shards.json").is_file():
            upload_shards(run.folder / "shards", self.copy_to)
            return Outcome(_summary(done), {"samples": done["samples"]}, did_nothing=True)
        (run.folder / "encode.json").unlink(missing_ok=True)
        work = run.folder / "work" / state[:16]
        counts = _Counts()
        keys = []
        # On a CPU, clips are encoded side by side: with two threads inside each small operation, on two cores busy with
        # decoding, a clip took 500 ms instead of 2.
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1 if device().type == "cpu" else num_threads)
        try:
            with bar("encode", len(clips), unit="clips") as line:
                for clip in map_in_order(lambda entry: self._encode(clips, entry, work), clips.entries):
                    found = _keys(work, clip.entry) if clip.bucket is not None else []
                    counts.count(clip, len(found))
                    keys += [(clip.entry, key, str(clip.bucket)) for key in found]
                    line.advance()
        finally:
            torch.set_num_threads(num_threads)
        if not keys:
            reasons = (counts.unbinned + counts.failed).most_common()
            why = ", ".join(f"{number} {reason}" for reason, number in reasons) or "there is none"
            raise NothingKept(f"no clip of {len(clips)} could be encoded: {why}")
        info(f"writing {len(keys)} samples to {run.folder / 'shards'}")

        with (
            replaced_folder(run.folder / "shards") as partial,
            ShardWriter(partial, samples_per_shard=self.samples_per_shard) as writer,
        ):
            for entry, key, bucket in keys:
                writer.write(key, *self._sample(clips, entry, key, bucket, work))
        entries = list({entry.key: entry for entry, _, _ in keys}.values())
        report: dict[str, Json] = {
            "clips": len(clips), "samples": counts.samples.total(), "by_bucket": dict(sorted(counts.samples.items())),
            "unbinned": dict(sorted(counts.unbinned.items())), "failed": dict(sorted(counts.failed.items())),
            "dtype": self.dtype, "codec": self.codec.fingerprint(), "text_encoder": self.text_encoder.fingerprint(),
            "made_of": state, "cut": say_cut(clips, entries, self.text_encoder),
        }  # fmt: skip
        upload_shards(run.folder / "shards", self.copy_to)
        write_json(run.folder / "encode.json", report)
        shutil.rmtree(run.folder / "work", ignore_errors=True)
        return Outcome(_summary(report), {"samples": report["samples"]})

    def _state(self) -> str:
        """A fingerprint of everything that the outputs depend on."""
        own = [self.codec.fingerprint(), self.text_encoder.fingerprint(), self.dtype]
        sizes = (self.windows_per_clip, self.samples_per_shard, self.buckets.buckets)
        return fingerprint(own, *sizes, shards_digest(self.shards))

    def _encode(self, clips: ShardSet, entry: Entry, work: Path) -> _ClipFate:
        """Encode a clip's windows, where that is not done yet, into one file that appears whole."""
        index = entry.index
        assigned = self.buckets.assign(index["width"], index["height"], index["num_frames"], index["fps"])
        if assigned.bucket is None:
            return _ClipFate(entry, unbinned=assigned.reason)
        if not _keys(work, entry):
            try:
                media = next((name for name in _MEDIA if name in entry.members), None)
                if media is None:
                    raise DataError(f"it has no media, only {sorted(entry.members)}; expected one of {_MEDIA}")
                pixels = training_windows(
                    clips.read(entry, media), is_image=media != "mp4",
                    bucket=self.buckets.buckets[assigned.bucket], max_windows=self.windows_per_clip,
                )  # fmt: skip
                tensors = [self._tensors(frames_THWC, fps, entry) for frames_THWC, fps in pixels]
            except (DataError, UserError) as error:
                return _ClipFate(entry, failed=str(error))
            joined = {f"{name}.{w}": value.contiguous() for w, one in enumerate(tensors) for name, value in one.items()}
            write_bytes(work / f"{entry.key}.safetensors", save(joined))
        return _ClipFate(entry, assigned.bucket)

    @torch.inference_mode()
    def _tensors(self, frames_THWC: Frames, fps: float, entry: Entry) -> dict[str, Tensor]:
        dtype = _DTYPES[self.dtype]
        if isinstance(self.codec, nn.Module):
            self.codec.to(device())
        video_BCTHW = torch.from_numpy(frames_THWC).to(device()).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
        latents_CTHW = self.codec.encode(video_BCTHW)[0].to("cpu", dtype)
        text_BLD, mask_BL = self.text_encoder.encode([str(entry.index["caption"])])
        tensors = {"latents": latents_CTHW, "text": text_BLD[0].to("cpu", dtype)}
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise DataError(f"clip {entry.key}: its {name} hold NaN or infinity as {self.dtype}; try dtype=fp32")
        return tensors | {"mask": mask_BL[0].to("cpu", torch.bool), "fps": torch.tensor(fps, dtype=torch.float64)}

    def _sample(
        self, clips: ShardSet, entry: Entry, key: str, bucket: str, work: Path
    ) -> tuple[dict[str, bytes], dict[str, Json]]:
        """Members and index of one sample."""
        window = int(key.rpartition("-w")[2])
        stored = load((work / f"{entry.key}.safetensors").read_bytes())
        latents = stored[f"latents.{window}"]
        shape, fps = self.buckets.buckets[bucket], float(stored[f"fps.{window}"])
        # Size, length and rate are from here on those of the sample, no longer those of the clip it was cut from.
        facts = {
            **entry.index, "clip": entry.key,
            "width": shape.width, "height": shape.height, "num_frames": shape.num_frames, "fps": fps,
            "duration_s": shape.num_frames / fps, "bucket": bucket, "latent_shape": list(latents.shape),
        }  # fmt: skip
        clip = json.loads(clips.read(entry, "json")) if "json" in entry.members else {}
        own = {"codec": self.codec.fingerprint(), "text_encoder": self.text_encoder.fingerprint(), "window": window}
        members = {
            "latents.safetensors": save({"latents": latents}),
            "text.safetensors": save({"text": stored[f"text.{window}"], "mask": stored[f"mask.{window}"]}),
            "txt": str(entry.index["caption"]).encode(),
            "json": json.dumps({**clip, **facts, **own}, ensure_ascii=False, allow_nan=False).encode(),
        }
        return members, facts


@dataclass(slots=True)
class _Counts:
    """Samples by bucket, and the reasons why clips gave none."""

    samples: Counter[str] = field(default_factory=Counter)
    unbinned: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    in_a_row: int = 0

    def count(self, clip: _ClipFate, num_samples: int) -> None:
        """Count one clip."""
        self.in_a_row = 0 if clip.failed is None else self.in_a_row + 1
        if clip.failed is not None:
            warn(f"clip {clip.entry.key} in {clip.entry.shard} failed: {clip.failed}")
            self.failed[clip.failed] += 1
            if self.in_a_row >= _MAX_FAILURES_IN_A_ROW:
                raise DataError(f"{self.in_a_row} clips in a row failed, the last: {clip.failed}; check the shards")
        elif clip.unbinned is not None:
            self.unbinned[clip.unbinned] += 1
        elif clip.bucket is not None:
            self.samples[clip.bucket] += num_samples


def _keys(work: Path, entry: Entry) -> list[str]:
    """The keys of a clip's encoded samples; none where it is not encoded yet."""
    path = work / f"{entry.key}.safetensors"
    if not path.is_file():
        return []
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [f"{entry.key}-w{w}" for w in range(sum(name.startswith("latents.") for name in header))]


def _summary(report: Json) -> str:
    buckets = ", ".join(f"{count} {name}" for name, count in report["by_bucket"].items())
    left_out = sum(report["unbinned"].values()) + sum(report["failed"].values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in (report["unbinned"] | report["failed"]).items())
    none = f"; {left_out} gave none: {reasons}" if left_out else ""
    return f"{report['samples']} samples ({buckets}) of {report['clips']} clips{none}"
