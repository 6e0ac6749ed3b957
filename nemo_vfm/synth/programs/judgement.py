"""Asks judges and reward models about answers, and reads what they say."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.row_program import Answers, Ask, Program, RowFailed, texts_of

#: How the reward of Nemotron-4 340B is made of its attributes (see its model card).
NEMOTRON_WEIGHTS = {"helpfulness": 0.3, "correctness": 0.74, "coherence": 0.46, "complexity": 0.47, "verbosity": -0.33}
COMPARE_PROMPTS = {"compare": frozenset({"transcript", "answer_a", "answer_b"})}
#: Begins where a name does, after marks of emphasis, so that no place is tried twice.
_PAIR = re.compile(
    r"(?<![a-z_])_*([a-z](?:[a-z_]*[a-z])?)[*_`\"']*+\s*+[:=]\s*[*_`]*(-?\d+(?:\.\d+)?)(?:\s*/\s*4)?\b", re.IGNORECASE
)
_LAST_WORD = re.compile(r"\b(A|B|tie)\b\W*$", re.IGNORECASE)
_FIRST_WORD = re.compile(r"[\W_]*(yes|no)(?:[\W_]|$)", re.IGNORECASE)

Verdict = Literal["A", "B", "tie"]


def transcript(messages: Sequence[Mapping[str, Json]]) -> str:
    """A conversation as a text: each turn begins with who speaks."""
    return "\n\n".join(f"[{message['role']}]\n{str(message.get('content') or '').strip()}" for message in messages)


def compare_answers(messages: Sequence[Mapping[str, Json]], one: str, other: str) -> Program[int | None]:
    """Which of two answers the judge prefers in both orders, 0 or 1; None where it calls a tie or changes its mind."""
    text = transcript(messages)
    orders = ((one, other), (other, one))
    asks = [Ask("compare", {"transcript": text, "answer_a": a, "answer_b": b}, model="judge") for a, b in orders]
    first, second = (verdict_of(answer) for answer in texts_of((yield asks)))
    if first == "tie" or second == "tie" or first == second:
        return None
    return 0 if first == "A" else 1


def verdict_of(answer: str) -> Verdict:
    """The last word of a judge."""
    found = _LAST_WORD.search(answer.strip())
    if found is None:
        raise RowFailed("the judge's answer ends with none of A, B and tie")
    if found[1].lower() == "tie":
        return "tie"
    return "A" if found[1].upper() == "A" else "B"


def scores_of(answer: str) -> dict[str, float]:
    """Numbers by name, from JSON or from lines such as `helpfulness: 3`; empty where there are none."""
    try:
        found = json.loads(answer[answer.index("{") : answer.rindex("}") + 1])
        pairs = [(str(name), float(value)) for name, value in found.items()]
    except (ValueError, TypeError, AttributeError, RecursionError):
        pairs = [(name, float(value)) for name, value in _PAIR.findall(answer)]
    return {name.lower(): value for name, value in pairs if math.isfinite(value)}


def says_yes(answer: str) -> bool:
    """Whether the first word of a judge is yes."""
    found = _FIRST_WORD.match(answer)
    if found is None:
        raise RowFailed("the judge said neither yes nor no")
    return found[1].lower() == "yes"


class Reward:
    """Asks a reward model, in the role `reward`.

    Args:
        weights: of its attributes; the reward is their weighted sum.
        least: rows below it are dropped; None keeps all.
    """

    def __init__(self, *, weights: Mapping[str, float] | None = None, least: float | None = None) -> None:
        self.weights = NEMOTRON_WEIGHTS if weights is None else dict(weights)
        if not self.weights or not all(map(math.isfinite, self.weights.values())):
            raise ValueError(f"weights must map attributes of the reward model to finite numbers, got {self.weights}")
        self.least = least

    def ask(self, messages: Sequence[Mapping[str, Json]]) -> Ask:
        """The question about a conversation that ends with the assistant's turn."""
        return Ask(None, before=tuple(messages), model="reward")

    def read(self, answers: Answers) -> list[dict[str, float]]:
        """Attributes of each conversation, and their sum as `reward`."""
        found = []
        for scores in map(scores_of, texts_of(answers)):
            if missing := sorted(self.weights.keys() - scores.keys()):
                raise RowFailed(f"the reward model gave no {missing[0]}")
            reward = sum(weight * scores[name] for name, weight in self.weights.items())
            found.append({**scores, "reward": reward})
        return found
