"""Recognises a foreign file's format, and collects what the recipe will hold and what became of every fact.

A *fact* is the meaning of a key, whatever its name: `lr`, `max_steps`. Formats say which key holds which fact. What
becomes of a fact is decided once for all formats, in `training.py` and `diffusion.py`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from nemo_vfm.cli.migrate.foreign_yaml import Key, Value

UNKNOWN = "not known; if it matters, look for its counterpart with `nemo-vfm explain`"
_DIFFUSION = re.compile(r"diffusion|imagen|\bdfm\.|\.dit\.", re.IGNORECASE)
_DIFFUSION_SECTIONS = {"flow_matching", "model.unet_config", "model.unet"}
_LANGUAGE = re.compile(r"collections\.(?:llm|nlp)\.|CausalLM|NextTokenPrediction|datasets\.llm|language_modeling")
_LANGUAGE_SECTIONS = {"packed_sequence", "model.tokenizer", "model.encoder_seq_length"}
_SPEECH = re.compile(r"collections\.(?:asr|tts|audio|slu|speech\w*|speaker\w*)\.")
Kind = Literal["diffusion", "language", "lightning"]
Verdict = Literal["carried", "changed", "left"]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a fact or a key."""

    verdict: Verdict  #: carried over as it was; carried over as something else; or left behind
    where: str = ""  #: the address in the recipe; empty where it was left
    why: str = ""  #: what changed, or why it was left; empty where it was carried


@dataclass(slots=True)
class RecipeDraft:
    """A recipe in the making."""

    facts: Mapping[str, Value]  #: what the file said
    kind: Kind  #: what is trained
    values: dict[str, Value] = field(default_factory=dict)  #: address -> value
    origins: dict[str, str] = field(default_factory=dict)  #: address -> fact
    choices: dict[str, str] = field(default_factory=dict)  #: slot -> ingredient
    notes: dict[str, str] = field(default_factory=dict)  #: address -> what stands behind the value
    fates: dict[str, Fate] = field(default_factory=dict)  #: fact -> what became of it
    differences: list[str] = field(default_factory=list)  #: what makes it another training than theirs

    def get(self, fact: str) -> Value:
        """The value of a fact; None also where nothing was said."""
        return self.facts.get(fact)

    def flag(self, fact: str) -> bool | None:
        """The value of a fact if it is true or false."""
        value = self.get(fact)
        return value if isinstance(value, bool) else None

    def real(self, fact: str) -> float | None:
        """The value of a fact if it is a number."""
        value = self.get(fact)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def number(self, fact: str) -> float | None:
        """The value of a fact if it is a number above zero."""
        value = self.real(fact)
        return value if value is not None and value > 0 else None

    def integer(self, fact: str) -> int | None:
        """The value of a fact if it is a whole number above zero; 1e9 is one, too."""
        value = self.number(fact)
        return int(value) if value is not None and value == int(value) else None

    def put(self, address: str, value: Value, note: str = "") -> None:
        """A value that follows from no fact alone."""
        self.values[address], self.notes[address] = value, note

    def carry(self, fact: str, address: str, value: Value = None) -> None:
        """The fact stands in the recipe as it was said."""
        self.put(address, self.get(fact) if value is None else value)
        self.origins[address] = fact
        self.fates[fact] = Fate("carried", address)

    def carry_or_leave(self, fact: str, address: str, value: Value, why: str) -> None:
        """The fact stands in the recipe as this value; where that is None it has no place, for this reason."""
        if value is None:
            self.leave(fact, why)
        else:
            self.carry(fact, address, value)

    def change(self, fact: str, address: str, value: Value, why: str) -> None:
        """The fact stands in the recipe as something else."""
        self.put(address, value)
        self.origins[address] = fact
        self.fates[fact] = Fate("changed", address, why)

    def choose(self, fact: str, slot: str, choice: str, why: str = "") -> None:
        """The fact is an ingredient of ours."""
        self.choices[slot] = choice
        self.fates[fact] = Fate("changed" if why else "carried", f"{slot}: {choice}", why)

    def agree(self, fact: str, where: str, why: str = "") -> None:
        """The fact helps to say what stands at `where`."""
        self.fates[fact] = Fate("changed" if why else "carried", where, why)

    def differ(self, how: str) -> None:
        """The recipe trains something else than the file; this is said before all else, once."""
        if how not in self.differences:
            self.differences.append(how)

    def leave(self, fact: str, why: str) -> None:
        """The fact has no place in the recipe."""
        if fact in self.facts:
            self.fates[fact] = Fate("left", "", why)


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a training down."""

    name: str  #: what it is called on the command line
    title: str  #: what it is called in sentences
    #: pattern -> fact. `*` stands for one part of an address, `**` for any number; the first that fits counts.
    taken: Mapping[str, str]
    left: Mapping[str, str]  #: pattern -> why such a key has no place in a recipe of ours; asked after `taken`
    #: facts that hold for a file of this format that does not say them
    always: Mapping[str, Value] = field(default_factory=dict)

    def fact(self, path: str) -> str:
        """The fact that a key holds; empty where it holds none."""
        return next((fact for pattern, fact in self.taken.items() if _pattern(pattern).fullmatch(path)), "")

    def reason(self, key: Key) -> str:
        """Why a key without a fact is left behind."""
        path = key.path
        if key.secret:
            return "secrets come from the environment only, never from a recipe"
        return next((why for pattern, why in self.left.items() if _pattern(pattern).fullmatch(path)), UNKNOWN)


def detect_format(keys: Sequence[Key]) -> str:
    """The name of the format that a file is written in, or an empty text."""
    paths = {key.path for key in keys}
    tops = {path.partition(".")[0] for path in paths}
    targets = [str(key.value) for key in keys if key.path.rpartition(".")[2] == "_target_"]
    if "train.train_iters" in paths or {"train", "model"} <= tops or any(name.startswith("dfm.") for name in targets):
        return "dfm"
    if "step_scheduler" in tops or any(name.startswith("nemo_automodel.") for name in targets):
        return "automodel"
    if any(re.match(r"nemo\.(?:lightning|collections\.(?:llm|diffusion|vlm|multimodal)\.)", name) for name in targets):
        return "nemo1" if "exp_manager" in tops else "nemo2"
    return "nemo1" if "trainer" in tops and {"exp_manager", "model", "optim"} & tops else ""


def kind_of(keys: Sequence[Key], form: Format) -> Kind | None:
    """What is trained, told from classes and sections; None where neither says it, as in a file about speech."""
    target_names = " ".join(
        str(key.value) for key in keys if key.path.rpartition(".")[2] in ("_target_", "target", "recipe")
    )
    sections = {key.path.partition(".")[0] for key in keys} | {".".join(key.path.split(".")[:2]) for key in keys}
    if _SPEECH.search(target_names):
        return None
    if form.name == "dfm" or _DIFFUSION.search(target_names) or _DIFFUSION_SECTIONS & sections:
        return "diffusion"
    if _LANGUAGE.search(target_names) or _LANGUAGE_SECTIONS & sections:
        return "language"
    return None


@cache
def _pattern(text: str) -> re.Pattern[str]:
    words = {"**": r".+", "*": r"[^.]+"}
    return re.compile(r"\.".join(words.get(part, re.escape(part).replace(r"\*", r"[^.]*")) for part in text.split(".")))
