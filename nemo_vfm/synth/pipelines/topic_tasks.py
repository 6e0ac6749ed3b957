"""Makes tasks and their answers from topics: subtopics, tasks, revisions and turns (2406.11704, 3.2.1 to 3.2.3)."""

from collections.abc import Iterable, Mapping, Sequence

from nemo_vfm.core.network.permission import SentText
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.checks.final_answer import final_answer, same_answer
from nemo_vfm.synth.programs.judgement import transcript
from nemo_vfm.synth.programs.list_questions import LIST_PROMPTS, in_turn, lists_of, num_topics, topics_of
from nemo_vfm.synth.programs.row_program import (
    GENERATOR,
    Ask,
    Draft,
    DroppedRow,
    Program,
    RowProgram,
    RowTask,
    parents_of,
    say,
    texts_of,
)


class TopicTasks:
    """Tasks about nothing given: open questions, things to write, problems to solve; the prompts say which.

    Args:
        topics: how many broad ones are asked for; or a list of your own.
        subtopics: of each topic.
        tasks: of each subtopic and level.
        levels: words for how hard a task is; the prompt `tasks` has a place {level}.
        revise: whether a task is written again with more detail before it is answered.
        turns: of the user: after an answer the model plays the user (prompt `follow_up`), and answers again.
        check_by: role of a model that solves each task, too; rows are kept whose final answers agree. `generator` takes
            a second sample, which needs a temperature above 0. Empty: nothing is checked.
    """

    def __init__(
        self, *, topics: int | Sequence[SentText] = 8, subtopics: int = 4, tasks: int = 4,
        levels: Sequence[SentText] = ("",), revise: bool = True, turns: int = 1, check_by: str = "",
    ) -> None:  # fmt: skip
        if min(num_topics(topics), subtopics, tasks, turns, len(levels)) < 1:
            raise ValueError(f"subtopics {subtopics}, tasks {tasks}, turns {turns} and the numbers of topics "
                             f"{num_topics(topics)} and levels {len(levels)} must be at least 1")  # fmt: skip
        if check_by and turns > 1:
            raise ValueError(f"check_by compares final answers of one turn, but turns is {turns}")
        self.topics, self.subtopics, self.tasks, self.levels = topics, subtopics, tasks, tuple(levels)
        self.revise, self.turns, self.check_by = revise, turns, check_by

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `Pipeline`."""
        topics = {"topics": ("count",)} if isinstance(self.topics, int) else {}
        always = topics | {
            "subtopics": ("count", "topic"), "tasks": ("count", "topic", "subtopic", "level"),
            "answer": ("task",),
        }  # fmt: skip
        more = {"revise": ("task",)} if self.revise else {}
        later = {"follow_up": ("transcript",)} if self.turns > 1 else {}
        return LIST_PROMPTS | {name: frozenset(places) for name, places in (always | more | later).items()}

    def roles(self) -> Sequence[str]:
        return () if self.check_by in ("", GENERATOR) else (self.check_by,)

    def max_rows(self) -> int:
        return num_topics(self.topics) * self.subtopics * self.tasks * len(self.levels)

    def candidates(self) -> Program[Iterable[RowProgram]]:
        tasks = yield from self._find_tasks()
        return (self.row(task, place) for task, place in tasks.items())

    def all_tasks(self) -> Program[Sequence[RowTask]]:
        """See `TaskSource`: as they were found, without revision or further turns."""
        tasks = yield from self._find_tasks()
        return [RowTask([say("user", task)], parents_of(task, place)) for task, place in tasks.items()]

    def _find_tasks(self) -> Program[dict[str, dict[str, str]]]:
        """Each task once, with its topic, subtopic and level; a topic whose list cannot be read is passed over."""
        topics = yield from topics_of(self.topics)
        asks = [Ask("subtopics", {"count": str(self.subtopics), "topic": topic}) for topic in topics]
        lists = yield from lists_of(asks, self.subtopics)
        places = [
            {"topic": topic, "subtopic": subtopic, "level": level}
            for topic, subtopics in zip(topics, lists, strict=True) for subtopic in subtopics for level in self.levels
        ]  # fmt: skip
        lists = yield from lists_of([Ask("tasks", {"count": str(self.tasks), **place}) for place in places], self.tasks)
        return in_turn(lists, places, "tasks")

    def row(self, task: str, place: Mapping[str, str]) -> RowProgram:
        """A task, perhaps revised, and answers turn by turn."""
        asked, messages = task, list[Json]()
        if self.revise:
            (asked,) = texts_of((yield [Ask("revise", {"task": task})]))
        for turn in range(self.turns):
            if turn:
                (asked,) = texts_of((yield [Ask("follow_up", {"transcript": transcript(messages)})]))
            (answer,) = texts_of((yield [Ask("answer", {"task": asked}, before=tuple(messages))]))
            if answer.strip() == asked.strip():
                return DroppedRow("echo")
            messages += [say("user", asked), say("assistant", answer)]
        verifier = ""
        if self.check_by:  # another solution must end with the same
            sample = int(self.check_by == GENERATOR)
            (other,) = texts_of((yield [Ask("answer", {"task": asked}, sample=sample, model=self.check_by)]))
            found, again = final_answer(answer), final_answer(other)
            if found is None or again is None:
                return DroppedRow("a solution without a final answer")
            if not same_answer(found, again):
                return DroppedRow("final answers that do not agree")
            verifier = f"final_answer: {found}, and by {self.check_by} {again}"
        return Draft(messages, parents_of(task, place), verifier=verifier)
