"""Makes dialogues in which a model plays both sides, the user's with a persona (2406.11704, 3.2.3)."""

import random
import re
from collections.abc import Mapping, Sequence

from nemo_vfm.core.network.permission import SentText
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.judgement import Reward, transcript
from nemo_vfm.synth.programs.list_questions import plain_words
from nemo_vfm.synth.programs.row_program import (
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

_LABEL = re.compile(r"^\W*(?:user|human|me|next message)\W*:\s*", re.IGNORECASE)
_FILLER = re.compile(
    r"^(?:(?:many )?thanks?(?: you)?(?: (?:so|very) much)?|great|perfect|wonderful|excellent|awesome|sure|got it|i see|"
    r"i appreciate|that(?:'s| is| was) (?:very |really |so )?(?:helpful|great|useful))\b[^.!?\n]*[.!\n]+\s*",
    re.IGNORECASE,
)


class Dialogues(TaskPipeline):
    """Dialogues of several turns.

    Args:
        tasks: what the user says first.
        personas: who the user is, in words; each dialogue has one. The prompt `user_turn` has a place {persona}.
        turns: of the user, each answered.
        reward: of the reward model; where its `least` is None, none is asked.
    """

    def __init__(
        self, *, tasks: TaskSource, personas: Sequence[SentText], turns: int = 3, reward: Reward = Reward()
    ) -> None:
        if turns < 1 or not personas or not all(persona.strip() for persona in personas):
            raise ValueError(f"turns {turns} must be at least 1, and personas at least one text, got {list(personas)}")
        self.tasks, self.personas, self.turns, self.reward = tasks, tuple(personas), turns, reward

    def prompts(self) -> Mapping[str, frozenset[str]]:
        return {**self.tasks.prompts(), "user_turn": frozenset({"persona", "transcript"})}

    def roles(self) -> Sequence[str]:
        return [*self.tasks.roles(), *([] if self.reward.least is None else ["reward"])]

    def row(self, task: RowTask) -> RowProgram:
        """All turns of a dialogue on a task."""
        persona = random.Random(transcript(task.messages)).choice(self.personas)
        messages: list[Mapping[str, Json]] = list(task.messages)
        for turn in range(self.turns):
            if turn:
                values = {"persona": persona, "transcript": transcript(messages)}
                (text,) = texts_of((yield [Ask("user_turn", values)]))
                if not (spoken := without_filler(text)):
                    raise RowFailed("a turn of the user is only polite")
                if any(plain_words(spoken) == plain_words(str(one["content"])) for one in messages):
                    return DroppedRow("a turn of the user repeats an earlier one")
                messages.append(say("user", spoken))
            (answer,) = texts_of((yield [Ask(None, before=tuple(messages))]))
            messages.append(say("assistant", answer))
        scores = dict[str, float]()
        if (reward := self.reward).least is not None:
            (scores,) = reward.read((yield [reward.ask(messages)]))
            if scores["reward"] < reward.least:
                return DroppedRow("below the least reward")
        return Draft(messages, {**task.parents, "persona": persona}, scores, licence=task.licence)


def without_filler(text: str) -> str:
    """A user's turn as a model wrote it, without label, quotes around it, and thanks and praise at its beginning."""
    text = _LABEL.sub("", text.strip())
    if len(text) > 1 and text[0] in '"\u201c' and text[-1] in '"\u201d':
        text = text[1:-1].strip()
    while shorter := _FILLER.match(text):
        text = text[shorter.end() :]
    return text.strip()
