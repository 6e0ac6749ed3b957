"""Counts the tokens of the tokenizers that a workflow trains, by the folders that its steps will make."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_vfm.core.types.job import Job
from nemo_vfm.runtime.checks.job_kinds import is_a
from nemo_vfm.workflow import Workflow


@dataclass(frozen=True, slots=True)
class StepVocabulary:
    """What a step makes."""

    step: str  #: its name
    size: int  #: tokens at most: of a small text, a tokenizer may learn fewer


def vocabularies(job: Job, run_dir: Path) -> dict[str, StepVocabulary]:
    """Of every folder of a tokenizer, or of texts as tokens, that a step makes; by its whole path."""
    found: dict[str, StepVocabulary] = {}
    steps: dict[str, Any] = dict(job.steps) if isinstance(job, Workflow) else {}
    for name, step in steps.items():
        if is_a(step, "nemo_vfm.text.train_tokenizer", "TrainTokenizer"):
            size = getattr(step.learner, "vocab_size", None)
            if isinstance(size, int):
                found[normalise_path(run_dir / name / "tokenizer")] = StepVocabulary(name, size)
        elif is_a(step, "nemo_vfm.text.tokenize", "TokenizeText") and (known := of_tokenizer(step.tokenizer, found)):
            found[normalise_path(run_dir / name / "tokens")] = known
    return found


def of_tokenizer(tokenizer: object, found: Mapping[str, StepVocabulary]) -> StepVocabulary | None:
    """What is known of a tokenizer whose folder a step makes; None of any other."""
    folder = getattr(tokenizer, "folder", None)
    return found.get(normalise_path(folder)) if isinstance(folder, Path) else None


def normalise_path(folder: Path) -> str:
    """A path by which folders are compared, whether they are there or not."""
    return os.path.normpath(Path.cwd() / folder)
