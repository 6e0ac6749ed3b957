"""Describes what the outputs of a reward model mean: attributes, their weights, and the token that is scored.

A reward model is a GPT whose head gives a few numbers in place of the vocabulary's scores: r = W norm(h), where h is
the last layer's state at the end of the response (HelpSteer2, arXiv 2406.08673; Nemotron-4, arXiv 2406.11704).
"""

import math
import re
from collections.abc import Mapping, Sequence

#: The name of an output that is not answered with; Nemotron-4's head has four such.
LEFT_OUT = "_"
#: What stands between names and scores in an answer is no part of a name.
_NAME = re.compile(r"[^\s:,=](?:[^\n\r:,=]{0,62}[^\s:,=])?")


class RewardHead:
    """The outputs of a reward model by name.

    Args:
        names: of the outputs, in the head's order; "_" leaves an output out.
        weights: of attributes in the one score, score = sum_i w_i r_i; those that are not named have 0. None: there is
            no such score, unless there is one attribute.
        pad: the token that fills texts up; None where there is none.
    """

    def __init__(
        self, names: Sequence[str], weights: Mapping[str, float] | None = None, pad: int | None = None
    ) -> None:
        self._places = {name: place for place, name in enumerate(names) if name != LEFT_OUT}
        if len(self._places) + names.count(LEFT_OUT) < len(names) or not self._places:
            raise ValueError(f"attributes must be at least one name, each once: {', '.join(names)}")
        if wrong := [name for name in self._places if not _NAME.fullmatch(name)]:
            raise ValueError(f"{wrong[0][:80]!r} is not a name of an attribute: it takes 1 to 64 characters, none of "
                             f"them a colon, a comma or =; give other names")  # fmt: skip
        if unknown := sorted((weights or {}).keys() - self._places):
            raise ValueError(f"there is a weight for {unknown[0]}, and the attributes are {', '.join(self._places)}")
        if not all(map(math.isfinite, (weights or {}).values())):
            raise ValueError("the weights of attributes must be finite numbers")
        self.weights = dict(weights) if weights else None
        self.pad = pad
        self.names = tuple(self._places)  #: of the attributes that are answered with, in the head's order

    def scored_prefix(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """A text up to the token whose state is scored: the last that is no padding, as in transformers 5.

        So where a model pads with the token that ends a turn, that token is not read. A text of padding alone is
        scored at its first token.
        """
        end = next((place + 1 for place in range(len(tokens) - 1, 0, -1) if tokens[place] != self.pad), 1)
        return tuple(tokens[:end])

    def scores(self, outputs: Sequence[float]) -> dict[str, float]:
        """The head's outputs by attribute."""
        return {name: outputs[place] for name, place in self._places.items()}

    def score(self, scores: Mapping[str, float]) -> float | None:
        """One number for all attributes; None where no weights say how."""
        if self.weights is None:
            return next(iter(scores.values())) if len(scores) == 1 else None
        return math.fsum(weight * scores[name] for name, weight in self.weights.items())
