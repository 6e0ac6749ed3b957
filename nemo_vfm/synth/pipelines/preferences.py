"""Makes pairs of a better and a worse answer, told apart by truth, judge or reward model (2406.11704, 3.2.4)."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nemo_vfm.synth.checks.final_answer import final_answer, same_answer
from nemo_vfm.synth.programs.judgement import COMPARE_PROMPTS, Reward, compare_answers, transcript
from nemo_vfm.synth.programs.row_program import (
    GENERATOR,
    Ask,
    Draft,
    DroppedRow,
    NoAnswer,
    Program,
    RowFailed,
    RowProgram,
    RowTask,
    TaskPipeline,
    TaskSource,
    say,
)

Decider = Literal["truth", "judge", "reward"]


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer."""

    text: str  #: what was said
    role: str  #: who said it


_Pair = tuple[_Answer, _Answer]


class Preferences(TaskPipeline):
    """Several models answer each task; the first decider that can tells which answer is better.

    Args:
        tasks: what is answered.
        responders: roles of the models that answer; the generator is one.
        samples: answers of each.
        by: the judges, in this order: `truth` where the right answer of a task is known, and some answers are right
            and some wrong; `judge` where it prefers the same of two answers in both orders; `reward` between the
            answers with the highest and the lowest reward.
        reward: how rewards are made; a chosen answer below its `least` drops the row, unless truth decided.
        min_margin: between two rewards, below which neither is better.
        score_all: ask for the rewards of both answers, whichever judge decides: RPO needs them.
    """

    def __init__(
        self, *, tasks: TaskSource, responders: Sequence[str] = (GENERATOR,), samples: int = 1,
        by: Sequence[Decider] = ("truth", "judge", "reward"), reward: Reward = Reward(), min_margin: float = 0.0,
        score_all: bool = False,
    ) -> None:  # fmt: skip
        if len(set(responders)) * samples < 2 or len(set(responders)) < len(responders):
            raise ValueError(f"responders {list(responders)} and samples {samples} must give at least two answers, and "
                             "name each responder once")  # fmt: skip
        if not by or len(set(by)) < len(by) or min_margin < 0:
            raise ValueError(
                f"by {list(by)} must name each decider once, and min_margin {min_margin} must be at least 0"
            )
        self.tasks, self.responders, self.samples, self.by = tasks, tuple(responders), samples, tuple(by)
        self.reward, self.min_margin = reward, min_margin
        self.scored = score_all or reward.least is not None

    def prompts(self) -> Mapping[str, frozenset[str]]:
        return dict(self.tasks.prompts()) | (COMPARE_PROMPTS if "judge" in self.by else {})

    def roles(self) -> Sequence[str]:
        judges = [role for role in ("judge", "reward") if role in self.by or (role == "reward" and self.scored)]
        return [*self.tasks.roles(), *(role for role in self.responders if role != GENERATOR), *judges]

    def row(self, task: RowTask) -> RowProgram:
        """A chosen and a rejected answer to a task."""
        roles = [role for role in self.responders for _ in range(self.samples)]
        asks = [Ask(None, before=tuple(task.messages), sample=number % self.samples, model=role)
                for number, role in enumerate(roles)]  # fmt: skip
        texts = yield asks
        found = {text.strip(): role for text, role in zip(texts, roles, strict=True) if isinstance(text, str)}
        if not found:
            raise RowFailed(next(text.reason for text in texts if isinstance(text, NoAnswer)))
        answers = [_Answer(text, role) for text, role in found.items()]
        random.Random(transcript(task.messages)).shuffle(answers)  # no responder is always the first
        if len(answers) < 2:
            return DroppedRow("all answers are alike")
        for decider in self.by:
            pair = yield from self._decide(task, decider, answers)
            if pair is not None:
                break
        else:
            return DroppedRow("no answer is clearly better")
        scores = dict[str, float]()
        if self.scored or decider == "reward":
            rewards = yield from self._rewards(task, pair)
            scores = {name: one["reward"] for name, one in zip(("chosen", "rejected"), rewards, strict=True)}
            least = self.reward.least
            if decider != "truth" and least is not None and scores["chosen"] < least:
                return DroppedRow("the better answer is below the least reward")
        sides = {"chosen": pair[0], "rejected": pair[1]}
        more = {name: [say("assistant", one.text)] for name, one in sides.items()}
        by = {f"{name}_by": one.role for name, one in sides.items()}
        verifier = "final answers: exactly one agrees with the known one" if decider == "truth" else ""
        return Draft(task.messages, {**task.parents, **by, "decided_by": decider}, scores, verifier,
                     task.licence, more)  # fmt: skip

    def _decide(self, task: RowTask, decider: Decider, answers: Sequence[_Answer]) -> Program[_Pair | None]:
        if decider == "truth":
            if task.truth is None:
                return None
            truth = final_answer(task.truth) or task.truth
            agrees = [same_answer(final_answer(one.text) or "", truth) for one in answers]
            right, wrong = (
                [one for one, is_same in zip(answers, agrees, strict=True) if is_same is wanted]
                for wanted in (True, False)
            )
            return (right[0], wrong[0]) if right and wrong else None
        if decider == "judge":
            one, other = answers[:2]
            first = yield from compare_answers(task.messages, one.text, other.text)
            return None if first is None else ((one, other), (other, one))[first]
        scores = yield from self._rewards(task, answers)
        order = sorted(range(len(answers)), key=lambda place: scores[place]["reward"])
        margin = scores[order[-1]]["reward"] - scores[order[0]]["reward"]
        return (answers[order[-1]], answers[order[0]]) if margin > self.min_margin else None

    def _rewards(self, task: RowTask, answers: Sequence[_Answer]) -> Program[list[dict[str, float]]]:
        asks = [self.reward.ask([*task.messages, say("assistant", one.text)]) for one in answers]
        return self.reward.read((yield asks))
