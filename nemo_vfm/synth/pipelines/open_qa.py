# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Makes open questions and their answers: topics, subtopics, questions, revisions (2406.11704, 3.2.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_vfm.synth.pipelines.answer_list import items_of
from nemo_vfm.synth.pipelines.row_program import Answers, Ask, Draft, Dropped, Program, RowFailed, answered


class OpenQa:
    """Questions that are about nothing given.

    Args:
        topics: how many broad ones are asked for.
        subtopics: of each topic.
        questions: on each subtopic.
        revise: whether a question is written again with more detail before it is answered.
    """

    def __init__(self, *, topics: int = 8, subtopics: int = 4, questions: int = 4, revise: bool = True) -> None:
        if min(topics, subtopics, questions) < 1:
            raise ValueError(f"topics {topics}, subtopics {subtopics} and questions {questions} must be at least 1")
        self.topics, self.subtopics, self.questions, self.revise = topics, subtopics, questions, revise

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `Pipeline`."""
        return {
            "topics": frozenset(["count"]), "subtopics": frozenset(["count", "topic"]),
            "questions": frozenset(["count", "subtopic", "topic"]), "revise": frozenset(["question"]),
            "answer": frozenset(["question"]),
        }  # fmt: skip

    def most_rows(self) -> int:
        """See `Pipeline`."""
        return self.topics * self.subtopics * self.questions

    def candidates(self) -> Program[Sequence["OpenQuestion"]]:
        """Questions, each once; a topic whose list cannot be read is passed over."""
        (found,) = answered((yield [Ask("topics", {"count": str(self.topics)})]))
        topics = items_of(found, self.topics)
        if not topics:
            raise RowFailed(f"the model was asked for a list of topics and wrote none: {found[:80]!r}")
        answers = yield [Ask("subtopics", {"count": str(self.subtopics), "topic": topic}) for topic in topics]
        lists = _lists(answers, self.subtopics)
        pairs = [(topic, sub) for topic, subs in zip(topics, lists, strict=True) for sub in subs]
        answers = yield [
            Ask("questions", {"count": str(self.questions), "topic": topic, "subtopic": sub}) for topic, sub in pairs
        ]
        every: dict[str, OpenQuestion] = {}
        for (topic, sub), questions in zip(pairs, _lists(answers, self.questions), strict=True):
            for question in questions:
                every.setdefault(question, OpenQuestion(question, topic, sub, self.revise))
        return list(every.values())


def _lists(answers: Answers, most: int) -> list[list[str]]:
    return [items_of(one, most) if isinstance(one, str) else [] for one in answers]


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """One question.

    Args:
        question: as it was found.
        topic: broad.
        subtopic: narrow.
        revise: whether it is written again.
    """

    question: str
    topic: str
    subtopic: str
    revise: bool

    def row(self) -> Program[Draft | Dropped]:
        """The question, perhaps revised, and its answer."""
        question = self.question
        if self.revise:
            (question,) = answered((yield [Ask("revise", {"question": question})]))
        (answer,) = answered((yield [Ask("answer", {"question": question})]))
        if answer.strip() == question.strip():
            return Dropped("echo")
        messages = [{"role": "user", "content": question.strip()}, {"role": "assistant", "content": answer.strip()}]
        return Draft(messages, {"topic": self.topic, "subtopic": self.subtopic, "question": self.question})
