"""Makes tasks about keywords of a bank, by level, and their answers (2406.11704, 3.2.1: Python and mathematics)."""

import re
from collections.abc import Iterable, Mapping, Sequence

from nemo_vfm.core.network.permission import SentText
from nemo_vfm.synth.checks.python_code import code_blocks, parse
from nemo_vfm.synth.pipelines.text_bank import TextBank
from nemo_vfm.synth.programs.list_questions import LIST_PROMPTS, in_turn, lists_of
from nemo_vfm.synth.programs.row_program import (
    Ask,
    Draft,
    DroppedRow,
    Pipeline,
    Program,
    RowFailed,
    RowProgram,
    RowTask,
    parents_of,
    say,
    texts_of,
)

_YES = re.compile(r"\W*yes\b", re.IGNORECASE)


class KeywordTasks(Pipeline):
    """Tasks about keywords; the prompts say of what subject.

    Args:
        bank: the keywords.
        max_keywords: how many of them are used, the first ones; None uses all.
        sort: whether the model is asked first which keywords are about the subject (prompt `about`), as banks need
            that are taken from an encyclopedia. Where its answer does not begin with yes, the keyword is left out.
        tasks: of each keyword and level.
        levels: words for how hard a task is; the prompt `tasks` has a place {level}.
        code: whether an answer must hold blocks of Python that compile. They are not run.
    """

    def __init__(
        self, *, bank: TextBank, max_keywords: int | None = None, sort: bool = False, tasks: int = 2,
        levels: Sequence[SentText] = ("",), code: bool = False,
    ) -> None:  # fmt: skip
        if min(tasks, len(levels), 1 if max_keywords is None else max_keywords) < 1:
            raise ValueError(f"tasks {tasks}, max_keywords {max_keywords} and the number of levels {len(levels)} "
                             "must be at least 1")  # fmt: skip
        self.bank, self.max_keywords, self.sort = bank, max_keywords, sort
        self.tasks, self.levels, self.code = tasks, tuple(levels), code

    def prompts(self) -> Mapping[str, frozenset[str]]:
        about = {"about": frozenset({"keyword"})} if self.sort else {}
        tasks = {"tasks": frozenset({"count", "keyword", "level"}), "answer": frozenset({"task"})}
        return {**LIST_PROMPTS, **about, **tasks}

    def max_rows(self) -> int | None:
        known = [one for one in (self.bank.max_texts(), self.max_keywords) if one is not None]
        return min(known) * self.tasks * len(self.levels) if known else None

    def candidates(self) -> Program[Iterable[RowProgram]]:
        found = yield from self._find_tasks()
        return (self.row(task, place) for task, place in found.items())

    def all_tasks(self) -> Program[Sequence[RowTask]]:
        """See `TaskSource`."""
        found = yield from self._find_tasks()
        return [RowTask([say("user", task)], parents_of(task, place)) for task, place in found.items()]

    def _find_tasks(self) -> Program[dict[str, dict[str, str]]]:
        """Each task once, with its keyword and level."""
        keywords = self.bank.all()[: self.max_keywords]
        if self.sort:
            answers = yield [Ask("about", {"keyword": keyword}) for keyword in keywords]
            keywords = [word for word, answer in zip(keywords, answers, strict=True)
                        if isinstance(answer, str) and _YES.match(answer)]  # fmt: skip
            if not keywords:
                raise RowFailed("the model did not answer yes for any keyword when asked whether it is about the "
                                "subject")  # fmt: skip
        count = len(self.levels)  # each run of rows has all keywords and all levels
        places = [{"keyword": keyword, "level": self.levels[(place + shift) % count]}
                  for shift in range(count) for place, keyword in enumerate(keywords)]  # fmt: skip
        lists = yield from lists_of([Ask("tasks", {"count": str(self.tasks), **place}) for place in places], self.tasks)
        return in_turn(lists, places, "tasks")

    def row(self, task: str, place: Mapping[str, str]) -> RowProgram:
        """A task about a keyword and level, and its answer."""
        (answer,) = texts_of((yield [Ask("answer", {"task": task})]))
        messages, verifier = [say("user", task), say("assistant", answer)], ""
        if self.code:
            blocks = code_blocks(answer)
            if not blocks:
                return DroppedRow("an answer without a block of code")
            if not all(map(parse, blocks)):
                return DroppedRow("code that does not compile")
            verifier = f"python: {len(blocks)} of {len(blocks)} blocks compile"
        return Draft(messages, parents_of(task, place), verifier=verifier)
