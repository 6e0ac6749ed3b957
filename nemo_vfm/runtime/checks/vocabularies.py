"""Counts the tokens of the tokenizers that a workflow trains, by the folders that its steps will make."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core.types.job import Job, MakesVocab
from nemo_vfm.workflow import Workflow


@dataclass(frozen=True, slots=True)
class StepVocabulary:
    """What a step makes."""

    step: str  #: its name
    size: int  #: tokens at most: of a small text, a tokenizer may learn fewer


def vocabularies(job: Job, run_dir: Path) -> dict[str, StepVocabulary]:
    """Of every folder of a tokenizer, or of texts as tokens, that a step makes; by its whole path."""
    found: dict[str, StepVocabulary] = {}
    for name, step in job.steps.items() if isinstance(job, Workflow) else ():
        if isinstance(step, MakesVocab):
            folder, says = step.made_vocab()
            known = StepVocabulary(name, says) if isinstance(says, int) else of_tokenizer(says, found)
            if known is not None:
                found[normalise_path(run_dir / name / folder)] = known
    return found


def of_tokenizer(tokenizer: object, found: Mapping[str, StepVocabulary]) -> StepVocabulary | None:
    """What is known of a tokenizer whose folder a step makes; None of any other."""
    folder = getattr(tokenizer, "folder", None)
    return found.get(normalise_path(folder)) if isinstance(folder, Path) else None


def normalise_path(folder: Path) -> str:
    """A path by which folders are compared, whether they are there or not."""
    return os.path.normpath(Path.cwd() / folder)
