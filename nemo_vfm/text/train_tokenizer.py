"""Trains a tokenizer that FolderTokenizer and transformers load, and measures how well it compresses."""

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from nemo_vfm.core import log
from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage.files import read_json, sha256_file, sync, write_json
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.text.documents import Documents
from nemo_vfm.text.learner import Learner

SCHEMA = "nemo_vfm.tokenizer/1"
MANIFEST = "manifest.json"
_MEASURED_BYTES = 16 << 20


@needs_packages("tokenizers")
@makes("tokenizer")
class TrainTokenizer:
    """Trains a tokenizer and writes it to `tokenizer/` of the run folder, complete or not at all.

    Args:
        documents: to train on.
        learner: the kind of tokenizer, and its settings.
        share: fraction of the documents to train on, in (0, 1]; the run's seed selects them.
    """

    def __init__(self, *, documents: Documents, learner: Learner, share: float = 1.0) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}")
        self.documents, self.learner, self.share = documents, learner, share

    def run(self, run: Run) -> Outcome:
        """Train, measure, and rename the folder into place; the manifest is written last."""
        target = run.folder / "tokenizer"
        provenance = self._provenance(run.seed)
        if (previous := _read_intact(target)) is not None and previous.get("made_of") == provenance:
            return _outcome(previous, did_nothing=True)
        working = run.folder / ".tokenizer.tmp"
        shutil.rmtree(working, ignore_errors=True)
        working.mkdir(parents=True)
        skipped, read = Counter[str](), Counter[str]()
        log.info(f"training a tokenizer on {self.documents.path}")
        texts = self._texts(run.seed, skipped, read)
        if (first := next(texts, None)) is None:  # libraries fail differently on empty input, or not at all
            reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            raise NothingKept(f"there is no document with text in {self.documents.path} ({reasons or 'no lines'}); "
                              "check path and column of documents")  # fmt: skip
        self.learner.learn(itertools.chain([first], texts), working)
        written = self._measure(working, run.seed) | {"documents": read["documents"], "bytes": read["bytes"]}
        vocab_size = written["vocab_size"]
        if vocab_size < (requested := int(self.learner.settings().get("vocab_size", vocab_size))):
            log.warn(f"{requested:,} tokens were requested, but these texts yield only {vocab_size:,}; a "
                     f"model with the requested size works, but some of its embeddings are never trained")  # fmt: skip
        manifest = {"schema": SCHEMA, "made_of": provenance, **written, "skipped": dict(skipped)}
        write_json(working / MANIFEST, manifest)
        shutil.rmtree(target, ignore_errors=True)
        working.rename(target)
        sync(run.folder)
        return _outcome(manifest, did_nothing=False)

    def made_vocab(self) -> tuple[str, object]:
        """See `MakesVocab`; a small text may yield fewer tokens."""
        return "tokenizer", self.learner.settings().get("vocab_size")

    def _provenance(self, seed: int) -> Json:
        libraries = dict.fromkeys(("tokenizers", "sentencepiece"), "absent")
        for name in libraries:
            with suppress(PackageNotFoundError):
                libraries[name] = version(name)
        return {
            "documents": self.documents.state(), "column": self.documents.column,
            "max_document_mb": self.documents.max_document_mb, "share": self.share,
            "seed": seed if self.share < 1 else None, "learner": dict(self.learner.settings()),
            "libraries": libraries,
        }  # fmt: skip

    def _texts(self, seed: int, skipped: Counter[str], read: Counter[str]) -> Iterator[str]:
        for number, text in enumerate(self.documents.texts(skipped)):
            # derive returns 63 bits.
            if self.share == 1 or derive(seed, "tokenizer", number) < self.share * 2**63:
                read["documents"] += 1
                read["bytes"] += len(text.encode(errors="replace"))
                yield text

    def _measure(self, folder: Path, seed: int) -> dict[str, Json]:
        """Size and compression, on the first texts that it was trained on."""
        tokenizer, measured = FolderTokenizer(folder=folder), Counter[str]()
        for text in self._texts(seed, Counter(), measured):
            measured["words"] += len(text.split())
            measured["tokens"] += len(tokenizer.encode([text])[0])
            if measured["bytes"] >= _MEASURED_BYTES:
                break
        tokens = max(1, measured["tokens"])
        return {
            "vocab_size": tokenizer.vocab_size(), "end": tokenizer.end(), "fingerprint": tokenizer.fingerprint(),
            "bytes_per_token": measured["bytes"] / tokens, "tokens_per_word": tokens / max(1, measured["words"]),
            "measured_bytes": measured["bytes"],
            "files": {path.name: sha256_file(path) for path in sorted(folder.iterdir())},
        }  # fmt: skip


def _read_intact(folder: Path) -> dict[str, Json] | None:
    """A tokenizer's manifest; None where it cannot be read, or a file is not the one that it lists."""
    try:
        manifest = read_json(folder / MANIFEST)
        intact = all(sha256_file(folder / name) == digest for name, digest in manifest["files"].items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return manifest if intact else None


def _outcome(manifest: dict[str, Json], *, did_nothing: bool) -> Outcome:
    names = ("vocab_size", "bytes_per_token", "tokens_per_word", "documents", "bytes")
    figures = {name: float(manifest[name]) for name in names}
    text = (f"a tokenizer of {manifest['vocab_size']:,} tokens, {manifest['bytes_per_token']:.2f} bytes a token, from "
            f"{manifest['documents']:,} documents")  # fmt: skip
    return Outcome(text, figures, did_nothing)
