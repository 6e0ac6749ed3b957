"""Adds a transcript of the speech in each clip to its shards, from the videos that the clips were cut from.

The model is one of NeMo's own, restored from a `.nemo` archive. The archive names the class that is built and holds
pickled weights: that is why this room requires `--trust nemo`.
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
    """Hears speech."""

    def hear(self, samples: NDArray[np.float32]) -> str:
        """What is said in samples from -1 to 1; empty where nothing is."""
        ...

    def rate(self) -> int:
        """Samples a second that it wants."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same samples would be heard otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Transcript:
    """What became of one clip."""

    text: str  #: what is said, one line; empty with every other status than success
    status: Status  #: no_sound where the video has none, no_speech where the model heard nothing
    failure: str | None = None  #: why there is no text; None but for errors


@needs_gpu()
@needs_packages("nemo")
class NeMoSpeech:
    """A speech model of nemo-toolkit 3.0 from a local archive; needs NeMo's speech collection, `nemo-toolkit[asr]`.

    Clips are given to the model one by one: its loaders may sort a batch by length, and a transcript of another clip
    would look as good as the right one.

    Args:
        model: a `.nemo` archive of a model with `transcribe`, such as a FastConformer CTC or a Parakeet.
    """

    def __init__(self, *, model: Path) -> None:
        self.model = model

    def hear(self, samples: NDArray[np.float32]) -> str:
        """What the model transcribes."""
        found = _restore_model(self.model).transcribe([samples], batch_size=1, verbose=False)
        return _text(found)

    def rate(self) -> int:
        """As the archive's preprocessor says; 16 kHz where it says nothing."""
        settings = getattr(_restore_model(self.model), "cfg", None)
        section = getattr(settings, "preprocessor", None)
        return int(getattr(section, "sample_rate", None) or getattr(settings, "sample_rate", None) or 16_000)

    def fingerprint(self) -> str:
        """The archive's bytes."""
        if not self.model.is_file():
            raise UserError(f"there is no model {self.model}; download one first, nothing is downloaded automatically")
        return f"nemo-speech/1 {sha256_file(self.model)[:16]}"


@makes("shards", "transcribe.json")
class Transcribe:
    """Adds `transcript`, and how it came to be, to the `.json` of every clip.

    The sound is taken from the videos that the clips were cut from, at the clip's time stamps: clips may have none, and
    where they have, its ends are cut to whole packets.
    What was heard is kept in `work/` until all is done; a failure is not, and is tried again by the next run.

    Args:
        shards: folder of clip shards, here or in an object store.
        videos: the folder that curation took the videos from; each is known by its bytes, and one that has changed
            is a failure of its clips.
        speech: the model.
        samples_per_shard: clips a shard.
        copy_to: folder of an object store where the finished shards go as well; None keeps them here alone.
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
        """Do the work; the second time it does nothing, unless some clips had failed."""
        index = folder_at(self.shards, None)
        if index.size("shards.json") is None:
            raise UserError(f"{self.shards} is not a finished folder of shards: there is no shards.json in it")
        marker = sha256(index.read("shards.json", 1 << 30)).hexdigest()
        # All that the outputs are made of.
        state = sha256_text(json.dumps([marker, self.speech.fingerprint(), self.samples_per_shard]))
        clips, target = ShardSet(self.shards), run.folder / "shards"
        report = None  # of an earlier run that made the same
        with suppress(OSError, ValueError, KeyError, TypeError):
            earlier = read_json(run.folder / DONE)
            report = earlier if earlier["made_of"] == state and (target / "shards.json").is_file() else None
        if report is not None and not report["by_status"].get("error"):
            upload_shards(target, self.copy_to)
            return Outcome(_summary(report), {"clips": report["clips"]}, did_nothing=True)
        (run.folder / DONE).unlink(missing_ok=True)
        work = run.folder / "work" / state[:16]
        rate = self.speech.rate()  # a model that cannot be loaded is the fault of no clip
        heard = {
            entry.key: self._transcribe_clip(clips, entry, work, rate) for entry in track("transcribe", clips.entries)
        }
        self._write(clips, heard, target)
        statuses = [found.status for found in heard.values()]
        by_status = {status: statuses.count(status) for status in sorted(set(statuses))}
        report = {"clips": len(clips), "by_status": by_status, "model": self.speech.fingerprint(), "made_of": state}
        upload_shards(target, self.copy_to)
        write_json(run.folder / DONE, report)
        if "error" not in by_status:
            shutil.rmtree(run.folder / "work", ignore_errors=True)
        return Outcome(_summary(report), {"clips": len(clips)})

    def _transcribe_clip(self, clips: ShardSet, entry: Entry, work: Path, rate: int) -> Transcript:
        kept = work / f"{entry.key}.json"
        if kept.is_file():
            return Transcript(**read_json(kept))
        try:
            found = self._listen(json.loads(clips.read(entry, "json")), rate)
        except (DataError, UserError, KeyError, ValueError) as error:
            warn_once(f"a clip could not be transcribed: {error}")
            return Transcript("", "error", clean(str(error)))
        write_json(kept, asdict(found))
        return found

    def _listen(self, clip: Mapping[str, Json], rate: int) -> Transcript:
        up, _, down = str(clip["time_base"]).partition("/")
        seconds = int(up) / int(down)
        start_s, end_s = int(clip["pts_start"]) * seconds, int(clip["pts_end"]) * seconds
        # The file a clip was cut from, of the very same bytes.
        root = self.videos.resolve()
        path = (root / str(clip["source"])).resolve()
        if not path.is_relative_to(root):
            raise UserError(f"the source {clean(str(clip['source']))[:200]!r} is outside {self.videos}")
        if not path.is_file():
            raise UserError(f"there is no {clip['source']} in {self.videos}")
        if _hash(path, path.stat().st_size, path.stat().st_mtime_ns) != clip["source_id"]:
            raise DataError(f"{clip['source']} has changed since the clip was cut")
        samples = read_audio(path, start_s, end_s, rate=rate)
        if samples is None:
            return Transcript("", "no_sound")
        if not np.any(samples):
            return Transcript("", "no_speech")
        text = clean(self.speech.hear(samples))
        return Transcript(text, "success") if text else Transcript("", "no_speech")

    def _write(self, clips: ShardSet, heard: Mapping[str, Transcript], target: Path) -> None:
        with ShardWriter(target, samples_per_shard=self.samples_per_shard) as writer:
            for entry in clips.entries:
                members = {name: clips.read(entry, name) for name in entry.members}
                found = heard[entry.key]
                transcript = {"transcript": found.text, "transcript_status": found.status}
                transcript |= {"transcript_model": self.speech.fingerprint()}
                transcript |= {} if found.failure is None else {"transcript_failure": found.failure}
                facts = {**json.loads(members.get("json", b"{}")), **transcript}
                members["json"] = json.dumps(facts, ensure_ascii=False, allow_nan=False).encode()
                writer.write(entry.key, members, entry.index)


@lru_cache(maxsize=1)
def _restore_model(model: Path) -> Json:
    """NeMo's model, ready to transcribe."""
    from nemo_vfm.core.device import device

    purpose = "Transcribing by a NeMo model (nemo-toolkit[asr])"
    models = require("nemo.collections.asr.models", purpose=purpose)
    return models.ASRModel.restore_from(str(model), map_location=device()).eval()


def _text(found: Json) -> str:
    """The text of one clip: NeMo gives texts or hypotheses, and transducers a pair of best and all."""
    best = found[0] if isinstance(found, tuple) else found
    if len(best) != 1:
        raise DataError(f"the model gave {len(best)} transcripts of one clip")
    return best[0] if isinstance(best[0], str) else str(best[0].text)


@lru_cache(maxsize=4096)
def _hash(path: Path, size: int, mtime_ns: int) -> str:
    return sha256_file(path)


def _summary(report: Json) -> str:
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in report["by_status"].items())
    return f"{report['clips']} clips: {counts}"
