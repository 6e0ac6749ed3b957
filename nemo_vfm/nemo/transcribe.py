"""Adds a transcript of the speech in each clip to its shards, from the videos that the clips were cut from.

The model is one of NeMo's own, restored from a `.nemo` archive. The archive names the class that is built and holds
pickled weights: that is why `--trust nemo` is required.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import track, warn_once
from nemo_vfm.core.optional import needs_gpu, needs_packages, require
from nemo_vfm.core.sanitize import clean
from nemo_vfm.core.storage.files import read_json, sha256_file, sha256_text, write_json
from nemo_vfm.core.storage.uri import Address, Place, place
from nemo_vfm.core.types.job import Needs, Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.shards.shard_files import Entry, ShardSet, ShardWriter
from nemo_vfm.data.shards.shard_folder import folder_at
from nemo_vfm.data.shards.shard_upload import upload_shards
from nemo_vfm.data.video.audio import read_audio

DONE = "transcribe.json"
Status = Literal["success", "no_speech", "no_sound", "error"]


@runtime_checkable
class Recogniser(Protocol):
    """Transcribes speech."""

    def transcribe(self, samples: NDArray[np.float32]) -> str:
        """The text spoken in mono samples (N,) from -1 to 1; empty if there is no speech."""
        ...

    def sample_rate_hz(self) -> int:
        """The sample rate that `transcribe` expects."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same samples could give another text."""
        ...


@dataclass(frozen=True, slots=True)
class Transcript:
    """The result for one clip."""

    text: str  #: what is said, on one line; empty unless status is success
    status: Status  #: no_sound: the video has no audio track; no_speech: the audio is silent or the text empty
    failure: str | None = None  #: the message of an error; else None


@needs_gpu()
@needs_packages("nemo")
class NeMoSpeech:
    """A speech model of nemo-toolkit 3.0 from a local archive; needs NeMo's speech collection, `nemo-toolkit[asr]`.

    Clips are transcribed one by one: NeMo's loaders may sort a batch by length, and nobody would notice that two clips
    have each other's transcripts.

    Args:
        model: a `.nemo` archive of a model with `transcribe`, such as a FastConformer CTC or a Parakeet.
    """

    def __init__(self, *, model: Path) -> None:
        self.model = model

    def transcribe(self, samples: NDArray[np.float32]) -> str:
        """The model's text. DataError if it does not give exactly one."""
        return _text(_restore_model(self.model).transcribe([samples], batch_size=1, verbose=False))

    def sample_rate_hz(self) -> int:
        """That of the archive's preprocessor; 16 kHz if it names none."""
        settings = getattr(_restore_model(self.model), "cfg", None)
        section = getattr(settings, "preprocessor", None)
        return int(getattr(section, "sample_rate", None) or getattr(settings, "sample_rate", None) or 16_000)

    def fingerprint(self) -> str:
        """A hash of the archive. UserError if there is none."""
        if not self.model.is_file():
            raise UserError(f"there is no model {self.model}; download one first, nothing is downloaded automatically")
        return f"nemo-speech/1 {sha256_file(self.model)[:16]}"


@makes("shards", "transcribe.json")
class Transcribe:
    """Copies shards, and adds `transcript`, `transcript_status` and `transcript_model` to the `.json` of every clip.

    The audio is read from the source videos, at the clips' timestamps: clips may have no audio, and where they have
    some, it begins and ends with a whole packet.
    Transcripts are kept in `work/` until no clip fails; failures are not kept, so the next run tries these clips again.

    Args:
        shards: folder of clip shards, here or in an object store.
        videos: the folder of the videos that were curated. Clips of a video whose bytes have changed since then fail.
        speech: the model.
        samples_per_shard: clips a shard.
        copy_to: folder of an object store to which the finished shards are copied; None: they stay here only.
    """

    def __init__(
        self, *, shards: Place, videos: Path, speech: Recogniser, samples_per_shard: int = 512,
        copy_to: Address | None = None,
    ) -> None:  # fmt: skip
        if samples_per_shard < 1:
            raise ValueError(f"samples_per_shard is {samples_per_shard}, but it must be at least 1")
        self.shards, self.videos, self.speech = place(shards), videos, speech
        self.samples_per_shard, self.copy_to = samples_per_shard, copy_to

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`."""
        return Needs(engine="torch")

    def run(self, run: Run) -> Outcome:
        """Write `shards/`, then transcribe.json. A second run only repeats clips that failed.

        Raises:
            UserError: there are no shards, or the model cannot be found. What a clip lacks is that clip's failure.
        """
        index = folder_at(self.shards, None)
        if index.size("shards.json") is None:
            raise UserError(f"{self.shards} is not a finished folder of shards: there is no shards.json in it")
        marker = sha256(index.read("shards.json", 1 << 30)).hexdigest()
        # All that the outputs depend on.
        state = sha256_text(json.dumps([marker, self.speech.fingerprint(), self.samples_per_shard]))
        clips, target = ShardSet(self.shards), run.folder / "shards"
        report = None  # that of an earlier run, if it made the same
        with suppress(OSError, ValueError, KeyError, TypeError):
            earlier = read_json(run.folder / DONE)
            report = earlier if earlier["made_of"] == state and (target / "shards.json").is_file() else None
        if report is not None and not report["by_status"].get("error"):
            upload_shards(target, self.copy_to)
            return Outcome(_summary(report), {"clips": report["clips"]}, did_nothing=True)
        (run.folder / DONE).unlink(missing_ok=True)
        work = run.folder / "work" / state[:16]
        rate_hz = self.speech.sample_rate_hz()  # loads the model here: if it fails, no clip is to blame
        entries = track("transcribe", clips.entries)
        transcripts = {entry.key: self._transcribe_clip(clips, entry, work, rate_hz) for entry in entries}
        self._write(clips, transcripts, target)
        statuses = [transcript.status for transcript in transcripts.values()]
        by_status = {status: statuses.count(status) for status in sorted(set(statuses))}
        report = {"clips": len(clips), "by_status": by_status, "model": self.speech.fingerprint(), "made_of": state}
        upload_shards(target, self.copy_to)
        write_json(run.folder / DONE, report)
        if "error" not in by_status:
            shutil.rmtree(run.folder / "work", ignore_errors=True)
        return Outcome(_summary(report), {"clips": len(clips)})

    def _transcribe_clip(self, clips: ShardSet, entry: Entry, work: Path, rate_hz: int) -> Transcript:
        cached = work / f"{entry.key}.json"
        if cached.is_file():
            return Transcript(**read_json(cached))
        try:
            transcript = self._transcribe_span(json.loads(clips.read(entry, "json")), rate_hz)
        except (DataError, UserError, KeyError, ValueError) as error:
            warn_once(f"a clip could not be transcribed: {error}")
            return Transcript("", "error", clean(str(error)))
        write_json(cached, asdict(transcript))
        return transcript

    def _transcribe_span(self, clip: Mapping[str, Json], rate_hz: int) -> Transcript:
        numerator, _, denominator = str(clip["time_base"]).partition("/")
        tick_s = int(numerator) / int(denominator)
        start_s, end_s = int(clip["pts_start"]) * tick_s, int(clip["pts_end"]) * tick_s
        # The source video, which must have the same bytes as when the clip was cut.
        root = self.videos.resolve()
        path = (root / str(clip["source"])).resolve()
        if not path.is_relative_to(root):
            raise UserError(f"the source {clean(str(clip['source']))[:200]!r} is outside {self.videos}; give the "
                            "folder that was curated")  # fmt: skip
        if not path.is_file():
            raise UserError(f"there is no {clip['source']} in {self.videos}; give the folder that was curated")
        if _hash(path, path.stat().st_size, path.stat().st_mtime_ns) != clip["source_id"]:
            raise DataError(f"{clip['source']} has changed since the clip was cut; curate it again")
        samples = read_audio(path, start_s, end_s, rate=rate_hz)
        if samples is None:
            return Transcript("", "no_sound")
        if not np.any(samples):
            return Transcript("", "no_speech")
        text = clean(self.speech.transcribe(samples))
        return Transcript(text, "success") if text else Transcript("", "no_speech")

    def _write(self, clips: ShardSet, transcripts: Mapping[str, Transcript], target: Path) -> None:
        with ShardWriter(target, samples_per_shard=self.samples_per_shard) as writer:
            for entry in clips.entries:
                members = {name: clips.read(entry, name) for name in entry.members}
                found = transcripts[entry.key]
                fields = {"transcript": found.text, "transcript_status": found.status}
                fields |= {"transcript_model": self.speech.fingerprint()}
                fields |= {} if found.failure is None else {"transcript_failure": found.failure}
                clip = {**json.loads(members.get("json", b"{}")), **fields}
                members["json"] = json.dumps(clip, ensure_ascii=False, allow_nan=False).encode()
                writer.write(entry.key, members, entry.index)


@lru_cache(maxsize=1)
def _restore_model(model: Path) -> Json:
    """NeMo's model in evaluation mode, on our device; the last one is kept."""
    from nemo_vfm.core.device import device

    purpose = "Transcribing by a NeMo model (nemo-toolkit[asr])"
    models = require("nemo.collections.asr.models", purpose=purpose)
    return models.ASRModel.restore_from(str(model), map_location=device()).eval()


def _text(output: Json) -> str:
    """The text of one clip: NeMo returns texts or hypotheses, and from transducers a pair (best, all)."""
    best = output[0] if isinstance(output, tuple) else output
    if len(best) != 1:
        raise DataError(f"the model gave {len(best)} transcripts of one clip; exactly one was expected")
    return best[0] if isinstance(best[0], str) else str(best[0].text)


@lru_cache(maxsize=4096)
def _hash(path: Path, size: int, mtime_ns: int) -> str:  # size and mtime_ns are keys of the cache only
    return sha256_file(path)


def _summary(report: Json) -> str:
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in report["by_status"].items())
    return f"{report['clips']} clips: {counts}"
