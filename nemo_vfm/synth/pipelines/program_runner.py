# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs many programs at once over one asker: questions of all of them are under way together."""

from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.question import Failure, Question, Reply
from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.pipelines.prompt_template import Prompt
from nemo_vfm.synth.pipelines.row_program import Answers, Ask, Candidate, Draft, Dropped, NoAnswer, Program, RowFailed


@dataclass(slots=True)
class Ended:
    """A program at its end.

    Args:
        number: of the candidate.
        result: what it made; a text says why it made nothing.
        asked: of each question: the prompt with its version, and the key of its answer in the journal.
        truncated: answers that a limit of tokens cut.
    """

    number: int
    result: Any
    asked: list[dict[str, str]] = field(default_factory=list)
    truncated: int = 0


@dataclass(slots=True)
class _Running:
    """A program that waits for answers."""

    ended: Ended
    program: Generator[Sequence[Ask], Answers, Any]
    answers: list[str | NoAnswer | None] = field(default_factory=list)
    noted: list[dict[str, str]] = field(default_factory=list)


class ProgramRunner:
    """Runs programs.

    Args:
        asker: of the model.
        prompts: by name.
        seed: chooses other answers to the same questions.

    `asked` and `recalled` count answers that were asked for now and those known before; `failed` counts by reason.
    """

    def __init__(self, asker: Asker, prompts: Mapping[str, Prompt], seed: int = 0) -> None:
        self._asker, self._prompts, self._seed = asker, prompts, seed
        self.asked = self.recalled = 0
        self.failed: Counter[str] = Counter()

    def finished(self, program: Program[Any]) -> Any:
        """The result of one program.

        Raises:
            NemoVfmError: it made nothing.
        """
        found = next(self._all(iter([program]), 1, lambda _: True))
        if isinstance(found.result, str):
            raise NemoVfmError(found.result)
        return found.result

    def rows(self, candidates: Sequence[Candidate], wanted: int) -> Iterator[Ended]:
        """Each candidate's end, as they come, until so many rows are accepted.

        A candidate begins only while the accepted ones and those under way are fewer than `wanted`. So it is the same
        candidates that begin, whatever the order of answers.
        """
        yield from self._all((one.row() for one in candidates), wanted, lambda result: isinstance(result, Draft))

    def _all(self, programs: Iterator[Program[Any]], wanted: int, accepts: Any) -> Iterator[Ended]:
        source = _Questions(self, programs, wanted, accepts)
        for end in self._asker.ask(source):
            source.take(end)
            yield from source.ended()
        yield from source.ended()

    def question(self, ask: Ask, index: int) -> Question:
        """What is sent."""
        before = [self._message(one) if isinstance(one, Ask) else one for one in ask.before]
        version = self._prompts[ask.prompt].version
        return Question([*before, self._message(ask)], index, ask.sample, f"{ask.prompt}/{version}/{self._seed}")

    def _message(self, ask: Ask) -> Json:
        return {"role": "user", "content": self._prompts[ask.prompt].filled(ask.values)}


class _Questions:
    """Questions of programs. It may have none now and some later: an asker looks again after each answer."""

    def __init__(self, runner: ProgramRunner, programs: Iterator[Program[Any]], wanted: int, accepts: Any) -> None:
        self._runner, self._programs, self._wanted, self._accepts = runner, enumerate(programs), wanted, accepts
        self._ready: deque[Question] = deque()
        self._of: dict[int, tuple[_Running, int]] = {}
        self._ended: list[Ended] = []
        self._running = self._accepted = self._next_index = 0

    def __iter__(self) -> Iterator[Question]:
        return self

    def __next__(self) -> Question:
        while not self._ready and self._running + self._accepted < self._wanted:
            if (begun := next(self._programs, None)) is None:
                break
            self._running += 1
            self._advance(_Running(Ended(begun[0], None), begun[1]), None)
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def ended(self) -> list[Ended]:
        """Programs that have ended since the last call."""
        found, self._ended = self._ended, []
        return found

    def take(self, end: Reply | Failure) -> None:
        """Give an answer to the program that waits for it."""
        running, place = self._of.pop(end.question.index)
        if isinstance(end, Reply):
            running.answers[place] = end.said.text
            running.ended.truncated += end.said.ending == "truncated"
            self._runner.asked += not end.recalled
            self._runner.recalled += end.recalled
        else:
            running.answers[place] = NoAnswer(end.reason)
            self._runner.failed[end.reason] += 1
        running.noted[place]["key"] = end.key
        if None not in running.answers:
            running.ended.asked += running.noted
            self._advance(running, [one for one in running.answers if one is not None])

    def _advance(self, running: _Running, answers: Answers | None) -> None:
        try:
            asks = next(running.program) if answers is None else running.program.send(answers)
            while not asks:
                asks = running.program.send([])
        except StopIteration as stop:
            return self._end(running, stop.value)
        except RowFailed as error:
            return self._end(running, str(error))
        running.answers, running.noted = [None] * len(asks), []
        for place, ask in enumerate(asks):
            question = self._runner.question(ask, self._next_index)
            self._of[self._next_index] = running, place
            self._next_index += 1
            running.noted.append({"prompt": question.template.rpartition("/")[0]})
            self._ready.append(question)
        return None

    def _end(self, running: _Running, result: Any) -> None:
        self._running -= 1
        self._accepted += self._accepts(result)
        running.ended.result = result
        self._ended.append(running.ended)


def row_of(ended: Ended, draft: Draft, facts: Mapping[str, Json]) -> dict[str, Json]:
    """A line of rows.jsonl, without its id."""
    return {
        "messages": [dict(message) for message in draft.messages], "parents": dict(draft.parents),
        "scores": dict(draft.scores), "asked": ended.asked, "truncated": ended.truncated, **facts,
    }  # fmt: skip


def reason_of(result: Dropped | str) -> str:
    """Why there is no row."""
    return result.rule if isinstance(result, Dropped) else result
