"""Provides the prompts of a sampling job: a list, a demo's held-out combinations, or captions of shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.synth import shot_plan
from nemo_vfm.synth.make_stories import story


@dataclass(frozen=True, slots=True)
class VideoPrompt:
    """What to draw."""

    text: str  #: the prompt
    #: what a measure should find in the sample, such as colour and direction; None where nothing is known
    attributes: Mapping[str, str] | None = None
    #: a picture that the video begins with, or a clip that it goes on from; None where nothing is given
    given: Path | None = None


@runtime_checkable
class Prompts(Protocol):
    """A source of prompts; it may have `given`, the first frames that come with them, `()` where none do."""

    def prompts(self) -> list[VideoPrompt]:
        """The prompts, in a fixed order."""
        ...


class PromptList:
    """The texts of the recipe itself.

    Args:
        texts: one prompt each.
        given: a picture or a clip for each text, or one for all, for a model that is given first frames.

    Raises:
        ValueError: no text, or another number of pictures and clips.
    """

    def __init__(self, *, texts: Sequence[str], given: Sequence[Path] = ()) -> None:
        if not texts:
            raise ValueError("texts is empty; give at least one prompt")
        if len(given) not in (0, 1, len(texts)):
            raise ValueError(
                f"given has {len(given)} files for {len(texts)} texts; give one for each text, or one for all"
            )
        self.texts = tuple(texts)
        self.given = tuple(given) * (len(texts) if len(given) == 1 else 1)

    def prompts(self) -> list[VideoPrompt]:
        """The texts in order."""
        given = self.given or (None,) * len(self.texts)
        return [VideoPrompt(text, given=path) for text, path in zip(self.texts, given, strict=True)]


class HeldOutPrompts:
    """The 16 combinations of colour, shape and direction that the demo's films never show.

    Args:
        num: how many of them, from the first.
    """

    def __init__(self, *, num: int = 16) -> None:
        if not 1 <= num <= len(shot_plan.combinations(held_out=True)):
            raise ValueError(f"num must be between 1 and {len(shot_plan.combinations(held_out=True))}, got {num}")
        self.num, self.given = num, ()

    def prompts(self) -> list[VideoPrompt]:
        """One prompt a combination, with colour, shape and direction to measure by."""
        found = shot_plan.combinations(held_out=True)[: self.num]
        return [VideoPrompt(f"a {c} {s} moving {d}", {"colour": c, "shape": s, "direction": d}) for c, s, d in found]


class CaptionPrompts:
    """Captions of curated clips: what a model trained on a user's own videos can be asked for.

    Args:
        shards: a folder of clip shards.
        num: how many different captions, at most.
    """

    def __init__(self, *, shards: Place, num: int = 16) -> None:
        if num < 1:
            raise ValueError(f"num must be at least 1, got {num}")
        self.shards, self.num, self.given = place(shards), num, ()

    def prompts(self) -> list[VideoPrompt]:
        """The first different captions in the order of the shards.

        Raises:
            NothingKept: no clip has a caption.
        """
        from nemo_vfm.data.shards.sample_reader import caption_of
        from nemo_vfm.data.shards.shard_files import ShardSet

        shards, captions = ShardSet(self.shards), dict[str, None]()
        for text in filter(None, (caption_of(shards, entry) for entry in shards.entries)):
            captions[text] = None
            if len(captions) == self.num:
                break
        if not captions:
            raise NothingKept(f"no clip in {self.shards} has a caption to use as a prompt")
        return [VideoPrompt(text) for text in captions]


class StoryPrompts:
    """Beginnings of little stories, about combinations of who, colour and thing that are never trained on.

    Args:
        num: how many.
        sentences: of the story that are given, from the first.
        held_out: False takes combinations that are trained on.
        seed: of the stories; another one than the training's tells of other places and fruits, too.
    """

    def __init__(self, *, num: int = 32, sentences: int = 3, held_out: bool = True, seed: int = 1) -> None:
        if num < 1 or not 1 <= sentences <= 3:
            raise ValueError(f"num must be at least 1 and sentences from 1 to 3, got {num} and {sentences}")
        self.num, self.sentences, self.held_out, self.seed, self.given = num, sentences, held_out, seed, ()

    def prompts(self) -> list[VideoPrompt]:
        """One a story."""
        told = (story(self.seed, number, held_out=self.held_out) for number in range(self.num))
        return [VideoPrompt(" ".join(one.sentences[: self.sentences])) for one in told]


class DemoPrompts:
    """What the quickstart asks for: the held-out combinations for its own films, captions for a user's videos.

    Args:
        input: the user's folder; None means the demo's own films.
        shards: the clip shards that captions are taken from.
        num: how many prompts, at most.
    """

    def __init__(self, *, input: Place | None, shards: Place, num: int = 16) -> None:
        self.given = ()
        self.source: Prompts = HeldOutPrompts(num=num) if input is None else CaptionPrompts(shards=shards, num=num)

    def prompts(self) -> list[VideoPrompt]:
        """The prompts of the source that fits."""
        return self.source.prompts()
