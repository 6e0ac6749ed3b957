"""Makes answers with ratings by attribute, 0 to 4, as reward models are trained on (HelpSteer2, 2406.08673)."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from nemo_vfm.synth.programs.judgement import scores_of, transcript
from nemo_vfm.synth.programs.row_program import (
    GENERATOR,
    Ask,
    Draft,
    DroppedRow,
    RowFailed,
    RowProgram,
    RowTask,
    TaskPipeline,
    TaskSource,
    say,
    texts_of,
)

ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
_MOST = 4


class Ratings(TaskPipeline):
    """A model answers each task, and a judge rates the answer by five attributes.

    Args:
        tasks: what is answered.
        responder: role of the model that answers.
        raters: how often the judge is asked; a row has the means.
        max_spread: between the highest and the lowest rating of an attribute; above it the row is dropped.
    """

    def __init__(
        self, *, tasks: TaskSource, responder: str = GENERATOR, raters: int = 1, max_spread: int = _MOST
    ) -> None:
        if raters < 1 or not 0 <= max_spread <= _MOST:
            raise ValueError(f"raters {raters} must be at least 1, and max_spread {max_spread} from 0 to {_MOST}")
        self.tasks, self.responder, self.raters, self.max_spread = tasks, responder, raters, max_spread

    def prompts(self) -> Mapping[str, frozenset[str]]:
        return {**self.tasks.prompts(), "rate": frozenset({"transcript", "answer"})}

    def roles(self) -> Sequence[str]:
        return [*self.tasks.roles(), "judge", *([] if self.responder == GENERATOR else [self.responder])]

    def row(self, task: RowTask) -> RowProgram:
        """An answer to a task with the mean of its ratings."""
        (answer,) = texts_of((yield [Ask(None, before=tuple(task.messages), model=self.responder)]))
        values = {"transcript": transcript(task.messages), "answer": answer}
        asks = [Ask("rate", values, sample=number, model="judge") for number in range(self.raters)]
        ratings = []  # each a whole number from 0 to 4 for each attribute
        for scores in map(scores_of, texts_of((yield asks))):
            for name in ATTRIBUTES:
                if scores.get(name) not in range(_MOST + 1):
                    raise RowFailed(f"the judge gave no {name} as a whole number from 0 to {_MOST}")
            ratings.append({name: int(scores[name]) for name in ATTRIBUTES})
        columns = {name: [rating[name] for rating in ratings] for name in ATTRIBUTES}
        if any(max(column) - min(column) > self.max_spread for column in columns.values()):
            return DroppedRow("raters disagree")
        means = {name: fmean(column) for name, column in columns.items()}
        messages = [*task.messages, say("assistant", answer)]
        return Draft(messages, task.parents, means, licence=task.licence, more={**means, "ratings": ratings})
