"""Makes tasks with instructions that a program checks, in three forms (2406.11704, 3.2.1), and answers that obey."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.checks.instruction_kinds import KINDS, Instruction, draw
from nemo_vfm.synth.programs.judgement import transcript
from nemo_vfm.synth.programs.list_questions import plain_words
from nemo_vfm.synth.programs.row_program import (
    Ask,
    Draft,
    DroppedRow,
    Program,
    RowFailed,
    RowProgram,
    RowTask,
    TaskPipeline,
    TaskSource,
    say,
    texts_of,
)

Form = Literal["one_turn", "all_turns", "revise"]
#: Two that make sense in the turn of their task alone.
_OF_ONE_TURN = ("repeat_prompt", "choice")
_LASTING = ("{} Keep to this in all your answers.", "This holds for your answers from now on, too: {}",
            "{} Do so until we are done, whatever I ask.")  # fmt: skip
_REVISING = ("Write your last answer again, so that this holds: {}", "Please change what you wrote. {}",
             "Keep what you said, but say it in another form. {}")  # fmt: skip
_DRAWS = 10  # of instructions that a first answer does not obey already
_CHECK = "instructions/2"

_Messages = list[Mapping[str, Json]]


class Instructions(TaskPipeline):
    """Tasks with instructions. An answer that breaks one is asked for again, or drops the row by the kind broken.

    Args:
        tasks: what is asked.
        forms: of rows, in turn: `one_turn` adds instructions to the task; `all_turns` adds some that hold for all
            answers of a conversation, each of which is checked; `revise` has the task answered, and then asks for
            that answer in a form that obeys instructions that it breaks.
        most: instructions of a row at most; each row has 1 to this many.
        kinds: to draw from; null takes all of `KINDS` but `choice`, which fits few tasks.
        turns: of the user in the form `all_turns`.
        attempts: answers that are asked for, one after another, until one obeys.
    """

    def __init__(
        self, *, tasks: TaskSource, forms: Sequence[Form] = ("one_turn", "all_turns", "revise"), most: int = 2,
        kinds: Sequence[str] | None = None, turns: int = 3, attempts: int = 1,
    ) -> None:  # fmt: skip
        if not forms or not set(forms) <= set(get_args(Form)):
            raise ValueError(f"forms {list(forms)} must name some of {', '.join(get_args(Form))}")
        if min(most, attempts) < 1 or turns < 2:
            raise ValueError(f"most {most} and attempts {attempts} must be at least 1, and turns {turns} at least 2")
        if kinds is not None and (not kinds or not set(kinds) <= KINDS.keys()):
            raise ValueError(f"kinds {list(kinds)} must name some of {', '.join(KINDS)}")
        self.tasks, self.forms, self.most, self.turns, self.attempts = tasks, tuple(forms), most, turns, attempts
        self.kinds = frozenset(KINDS.keys() - {"choice"} if kinds is None else kinds)
        if {*forms} != {"one_turn"} and not self.kinds - {*_OF_ONE_TURN}:
            raise ValueError(f"kinds {sorted(self.kinds)} suit only the form one_turn; name others, too")

    def prompts(self) -> Mapping[str, frozenset[str]]:
        later = {"next_turn": frozenset({"transcript"})} if "all_turns" in self.forms else {}
        return {**self.tasks.prompts(), **later}

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """Each task in one form."""
        tasks = yield from self.tasks.all_tasks()
        return (self.row(task, self.forms[number % len(self.forms)]) for number, task in enumerate(tasks))

    def row(self, task: RowTask, form: Form = "one_turn") -> RowProgram:
        """A conversation on a task whose answers obey."""
        rng = random.Random(f"{form}\n{transcript(task.messages)}")
        kinds = self.kinds if form == "one_turn" else self.kinds - {*_OF_ONE_TURN}
        messages: _Messages
        if form == "revise":
            (first,) = texts_of((yield [Ask(None, before=tuple(task.messages))]))
            drawn = (self._draw(rng, task, kinds) for _ in range(_DRAWS))
            found = next((some for some in drawn if not all(one.holds(first) for one in some)), None)
            if found is None:
                return DroppedRow("the first answer obeys what was drawn")
            instructions, told = found, " ".join(one.text for one in found)
            asked = rng.choice(_REVISING).format(told)
            messages = [*task.messages, say("assistant", first), say("user", asked)]
        else:
            instructions = self._draw(rng, task, kinds)
            told = " ".join(one.text for one in instructions)
            *before, last = task.messages
            told = told if form == "one_turn" else rng.choice(_LASTING).format(told)
            messages = [*before, say("user", f"{str(last['content']).strip()}\n\n{told}")]
        turns = self.turns if form == "all_turns" else 1
        for turn in range(turns):
            if turn:
                (spoken,) = texts_of((yield [Ask("next_turn", {"transcript": transcript(messages)})]))
                if any(plain_words(spoken) == plain_words(str(one["content"])) for one in messages):
                    return DroppedRow("a turn of the user repeats an earlier one")
                messages.append(say("user", spoken))
            if broken := (yield from self._answer(messages, instructions)):
                return DroppedRow(broken)
        obeyed = ", ".join(one.kind for one in instructions)
        return Draft(messages, {**task.parents, "form": form},
                     verifier=f"{_CHECK}: {turns} of {turns} answers obey: {obeyed}", licence=task.licence,
                     more={"instructions": [one.row() for one in instructions]})  # fmt: skip

    def _draw(self, rng: random.Random, task: RowTask, kinds: frozenset[str]) -> list[Instruction]:
        count = rng.randint(1, self.most)
        if not (found := draw(rng, count, prompt=str(task.messages[-1]["content"]), kinds=kinds)):
            raise RowFailed("no instruction of the kinds fits the task")
        return found

    def _answer(self, messages: _Messages, instructions: Sequence[Instruction]) -> Program[str | None]:
        """Append an answer that obeys; which kind the last one broke, where none does."""
        broken = list[str]()
        for attempt in range(self.attempts):
            (answer,) = texts_of((yield [Ask(None, before=tuple(messages), sample=attempt)]))
            if not (broken := [one.kind for one in instructions if not one.holds(answer.strip())]):
                messages.append(say("assistant", answer))
                return None
        return f"not obeyed: {broken[0]}"
