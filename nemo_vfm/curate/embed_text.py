"""Adds an embedding of each caption to finished shards; media and latents are copied unchanged.

Shape letters: B batch, L text tokens, D width of a text token.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import bar, warn
from nemo_vfm.core.storage.files import sha256_text, write_bytes, write_json
from nemo_vfm.core.storage.uri import Address, Place, place
from nemo_vfm.core.types.encoders import CutsTexts, TextEncoder
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.curate.examine.findings import fingerprint
from nemo_vfm.curate.output.write_outputs import read_marker, remove_unfinished, replaced_folder, shards_digest
from nemo_vfm.data.shards.sample_members import TEXT
from nemo_vfm.data.shards.sample_reader import Samples, caption_of
from nemo_vfm.data.shards.shard_files import Entry, ShardSet, ShardWriter
from nemo_vfm.data.shards.shard_upload import upload_shards

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_DONE = "embed_text.json"
_GROUP = 256


@makes("shards", "embed_text.json")
class EmbedText:
    """Adds `text.safetensors` to every sample of clip or latent shards; one that is there is replaced.

    Equal captions are encoded once. Encoded texts are kept in `work/` until all is done, so that a killed run resumes
    where it stopped.

    Args:
        shards: folder of finished shards, here or in an object store.
        text_encoder: captions to embeddings.
        dtype: how embeddings are stored.
        batch_size: captions encoded at once.
        samples_per_shard: samples per shard.
        copy_to: folder of an object store to which the finished shards are copied; None copies nothing.
    """

    def __init__(
        self, *, shards: Place, text_encoder: TextEncoder, dtype: Literal["fp32", "fp16", "bf16"] = "bf16",
        batch_size: int = 16, samples_per_shard: int = 512, copy_to: Address | None = None,
    ) -> None:  # fmt: skip
        if min(batch_size, samples_per_shard) < 1:
            raise ValueError(f"batch_size {batch_size} and samples_per_shard {samples_per_shard} must be at least 1")
        self.shards, self.text_encoder, self.dtype = place(shards), text_encoder, dtype
        self.batch_size, self.samples_per_shard, self.copy_to = batch_size, samples_per_shard, copy_to

    def run(self, run: Run) -> Outcome:
        """Do the work; a second run does nothing.

        Raises:
            UserError: there are no finished shards.
            DataError: an embedding is not finite.
        """
        samples = ShardSet(self.shards)
        remove_unfinished(run.folder)
        target, done = run.folder / "shards", run.folder / _DONE
        outcome = Outcome(f"{len(samples)} samples have text embeddings", {"samples": len(samples)})
        state = self._state()
        if read_marker(done, state) is not None and (target / "shards.json").is_file():
            upload_shards(target, self.copy_to)
            return replace(outcome, did_nothing=True)
        done.unlink(missing_ok=True)
        work = run.folder / "work" / state[:16]
        self._encode(samples, work)

        size = self.samples_per_shard
        with replaced_folder(target) as partial, ShardWriter(partial, samples_per_shard=size) as writer:
            for entry in samples.entries:
                kept = {name: samples.read(entry, name) for name in entry.members if name != TEXT}
                if "json" in kept:
                    facts = {**json.loads(kept["json"]), "text_encoder": self.text_encoder.fingerprint()}
                    kept["json"] = json.dumps(facts, ensure_ascii=False, allow_nan=False).encode()
                kept[TEXT] = (work / _name(caption_of(samples, entry))).read_bytes()
                writer.write(entry.key, kept, entry.index)
        upload_shards(target, self.copy_to)
        encoder, cut = self.text_encoder.fingerprint(), say_cut(samples, samples.entries, self.text_encoder)
        facts = {"samples": len(samples), "cut": cut, "text_encoder": encoder, "dtype": self.dtype, "made_of": state}
        write_json(done, facts)
        shutil.rmtree(run.folder / "work", ignore_errors=True)
        return outcome

    def _state(self) -> str:
        """A fingerprint of everything that the outputs depend on."""
        parts = (self.text_encoder.fingerprint(), self.dtype, self.samples_per_shard)
        return fingerprint(*parts, shards_digest(self.shards))

    def _encode(self, samples: ShardSet, work: Path) -> None:
        """Every caption that has no file in `work` yet."""
        captions = {_name(text): text for text in (caption_of(samples, entry) for entry in samples.entries)}
        missing = [(name, text) for name, text in sorted(captions.items()) if not (work / name).is_file()]
        with bar("embed captions", len(missing), unit="captions") as line:
            for first in range(0, len(missing), self.batch_size):
                group = missing[first : first + self.batch_size]
                with torch.inference_mode():
                    text_BLD, mask_BL = self.text_encoder.encode([text for _, text in group])
                    text_BLD, mask_BL = text_BLD.to("cpu", _DTYPES[self.dtype]), mask_BL.to("cpu", torch.bool)
                    for (name, text), text_LD, mask_L in zip(group, text_BLD, mask_BL, strict=True):
                        if not torch.isfinite(text_LD).all():
                            raise DataError(f"the embedding of {text[:80]!r} holds NaN or infinity as {self.dtype}")
                        write_bytes(work / name, save({"text": text_LD.clone(), "mask": mask_L.clone()}))
                line.advance(len(group))


def say_cut(samples: Samples, entries: Sequence[Entry], encoder: TextEncoder) -> int:
    """Warn about captions that the encoder truncates, and return their number."""
    if not isinstance(encoder, CutsTexts):
        return 0
    groups = (entries[first : first + _GROUP] for first in range(0, len(entries), _GROUP))
    cut = sum(encoder.num_cut([caption_of(samples, entry) for entry in group]) for group in groups)
    if cut:
        warn(f"{cut} of {len(entries)} captions are longer than the text encoder's max_tokens and were truncated")
    return cut


def _name(caption: str) -> str:
    return f"{sha256_text(caption)[:32]}.safetensors"
