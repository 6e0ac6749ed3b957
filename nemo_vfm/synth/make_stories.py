"""Generates files of little stories, and computes how few nats a reader needs who knows their grammar.

`metrics/story_grammar.py` has the words and judges what a model makes of them. Some combinations of who, colour and
thing never occur in the training stories, and always in the held-out ones: a model that gets one right has not copied.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import TypeVar

import numpy as np

from nemo_vfm.core import log
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage import files
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.metrics.story_grammar import (
    COLOURS,
    FRUITS,
    HE,
    HIDES,
    NUMBERS,
    PLACES,
    SHE,
    THINGS,
    TIMES,
    count_text,
    pronouns,
)

_MARKER = "stories.json"
_ONE_IN = 8  # of the combinations are held out
_LARGEST = len(NUMBERS) - 1
Beginning = tuple[str, str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Story:
    """A story."""

    sentences: tuple[str, ...]
    nats: float  #: minus the logarithm of its probability, in natural units

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join(self.sentences)


@dataclass(slots=True)
class _Teller:
    """Draws words, and adds up how improbable they were."""

    random: np.random.Generator
    nats: float = 0.0
    said: list[str] = field(default_factory=list)

    def one(self, choices: Sequence[T]) -> T:
        self.nats += math.log(len(choices))
        return choices[int(self.random.integers(len(choices)))]


@cache
def beginnings(*, held_out: bool) -> tuple[Beginning, ...]:
    """(who, colour, thing): those that are trained on, or those that are held out."""
    every = product(enumerate(SHE + HE), enumerate(COLOURS), enumerate(THINGS))
    return tuple(
        (who, colour, thing) for (i, who), (j, colour), (k, thing) in every
        if ((i + 2 * j + 3 * k) % _ONE_IN == 0) is held_out
    )  # fmt: skip


def story(seed: int, number: int, *, held_out: bool = False) -> Story:
    """The story of this number: a pure function of the arguments."""
    teller = _Teller(np.random.default_rng(derive(seed, "stories", int(held_out), number)))
    hero, colour, thing = teller.one(beginnings(held_out=held_out))
    friend = teller.one([name for name in SHE + HE if name != hero])
    owned = f"{colour} {thing}"
    (she, her), place, fruit = pronouns(hero), teller.one(PLACES), teller.one(list(FRUITS))
    number = teller.one(range(2, 7))
    theirs = f"{teller.one(COLOURS)} {teller.one(THINGS)}"
    teller.said += [
        f"One {teller.one(TIMES)} {hero} went to the {place}.",
        f"{she.capitalize()} had a {owned} and {count_text(number, fruit)}.",
        f"There {she} met {friend}, who had a {theirs}.",
    ]
    for _ in range(teller.one((1, 2, 3))):  # fruits are eaten, given or got, and counted again
        changes = [-n for n in (1, 2, 3) if n <= number] + [n for n in (1, 2, 3) if number + n <= _LARGEST]
        change = teller.one(changes)
        number, some = number + change, count_text(abs(change), fruit)
        if change > 0:
            told = f"{friend} gave {her} {some}."
        else:
            told = teller.one((f"{she.capitalize()} ate {some}.", f"{she.capitalize()} gave {friend} {some}."))
        teller.said += [told, f"Now {hero} had {count_text(number, fruit)}."]
    if teller.one((False, True)):
        teller.said.append(f"{hero} and {friend} swapped, so {she} had the {theirs}.")
        owned = theirs
    teller.said += [f"Then {she} went home from the {place}.", f"At home {hero} put the {owned} {teller.one(HIDES)}."]
    return Story(tuple(teller.said), teller.nats)


@makes("train", "held_out", "stories.json")
class TellStories:
    """Writes little stories as JSONL, those to train on below `train/` and others below `held_out/`.

    Args:
        num_stories: to train on.
        num_held_out: others, each about a combination of who, colour and thing that is never trained on.
        per_file: stories of a file.
    """

    def __init__(self, *, num_stories: int = 20_000, num_held_out: int = 500, per_file: int = 5_000) -> None:
        if num_stories < 1 or num_held_out < 0 or per_file < 1:
            raise ValueError(
                f"num_stories ({num_stories}) and per_file ({per_file}) must be at least 1, num_held_out "
                f"({num_held_out}) at least 0"
            )
        self.num_stories, self.num_held_out, self.per_file = num_stories, num_held_out, per_file

    def run(self, run: Run) -> Outcome:
        """Write the files that are missing; `stories.json` is written last and says what there is."""
        asked = {"seed": run.seed, "stories": self.num_stories, "held_out": self.num_held_out,
                 "per_file": self.per_file}  # fmt: skip
        told = files.read_json_or_none(run.folder / _MARKER)
        if isinstance(told, dict) and told.get("asked") == asked:
            return self._outcome(told, did_nothing=True)
        parts = {"train": (False, self.num_stories), "held_out": (True, self.num_held_out)}
        nats = {}  # of a story, on average
        for part, (held_out, count) in parts.items():
            folder, total, written = run.folder / part, 0.0, set()
            for begin in log.track(f"stories, {part}", range(0, count, self.per_file)):
                found = [story(run.seed, n, held_out=held_out) for n in range(begin, min(count, begin + self.per_file))]
                total += sum(one.nats for one in found)
                lines = [json.dumps({"id": f"{part}-{begin + n}", "text": one.text}) for n, one in enumerate(found)]
                path = folder / f"stories-{begin // self.per_file:05d}.jsonl"
                files.write_text(path, "\n".join(lines) + "\n")
                written.add(path)
            for left in set(folder.glob("stories-*.jsonl")) - written:  # of another seed or number of stories
                left.unlink()
            nats[part] = total / max(1, count)
        told = {"asked": asked, "nats_per_story": nats["train"], "nats_per_held_out_story": nats["held_out"]}
        files.write_json(run.folder / _MARKER, told)
        return self._outcome(told, did_nothing=False)

    def _outcome(self, told: Json, *, did_nothing: bool) -> Outcome:
        nats = told["nats_per_story"]
        text = (f"{self.num_stories} stories and {self.num_held_out} held out; knowing their grammar, one takes "
                f"{nats:.1f} nats")  # fmt: skip
        figures = {"stories": self.num_stories, "held_out": self.num_held_out, "nats_per_story": nats}
        return Outcome(text, figures, did_nothing)
