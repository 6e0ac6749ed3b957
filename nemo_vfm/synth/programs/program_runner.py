"""Runs many programs at once over one asker: questions of all of them are under way together."""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.batch_asker import BatchAsker
from nemo_vfm.asking.budget import TokenCost
from nemo_vfm.asking.question import Failure, Question, Reply
from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.prompt_template import Prompt
from nemo_vfm.synth.programs.row_program import (
    GENERATOR,
    Answers,
    Ask,
    Draft,
    DroppedRow,
    Filter,
    ModelAnswer,
    NoAnswer,
    OrderedFilter,
    Program,
    RowFailed,
    RowProgram,
    apply_filters,
    is_conversation,
)

_ASKED_AS_IT_IS = "as it is/1"  # in the place of a prompt and its version


@dataclass(slots=True)
class EndedProgram:
    """A program at its end."""

    number: int  #: of the candidate
    result: Any  #: what it made; a text says why it made nothing
    #: of each question: the prompt with its version, who was asked, and the key of its answer in the journal
    asked: list[dict[str, str]] = field(default_factory=list)
    truncated: int = 0  #: answers that a limit of tokens cut
    thoughts: dict[str, str] = field(default_factory=dict)  #: of a reasoning model, by the answer that followed

    def note_thought(self, answer: ModelAnswer) -> None:
        """Keep what was thought before an answer."""
        if answer.thought:
            self.thoughts[answer.strip()] = answer.thought


@dataclass(slots=True)
class ModelUse:
    """What one model was used for."""

    asked: int = 0  #: answers asked for now
    recalled: int = 0  #: answers known before
    cost: TokenCost = field(default_factory=TokenCost)  #: of both


@dataclass(slots=True)
class _Running:
    """A program that waits for answers."""

    ended: EndedProgram
    program: Generator[Sequence[Ask], Answers, Any]
    answers: list[str | NoAnswer | None] = field(default_factory=list)
    noted: list[dict[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class ProgramRunner:
    """Runs programs."""

    _asker: Asker | BatchAsker
    _prompts: Mapping[str, Prompt]
    _seed: int = 0
    uses: dict[str, ModelUse] = field(default_factory=dict)  #: of answers, by role
    failures: dict[str, Counter[str]] = field(default_factory=dict)  #: questions without an answer, by role and reason
    _paid: set[str] = field(default_factory=set)

    def failure_counts(self) -> Counter[str]:
        """Questions without an answer, by reason."""
        return sum(self.failures.values(), Counter())

    def silent_model(self) -> str:
        """Which model has answered no question at all, and what it most often said instead; empty where there is none.

        Rows lack what it was asked for, whatever they say about that.
        """
        for role, reasons in self.failures.items():
            if role not in self.uses:
                ((reason, _),) = reasons.most_common(1)
                return f"the model in the role {role} answered none of {reasons.total():,} questions: {reason}"
        return ""

    def result_of(self, program: Program[Any]) -> Any:
        """The result of one program."""
        found = next(self._all(iter([program]), 1, lambda result: result))
        if isinstance(found.result, str):
            raise NemoVfmError(found.result)
        return found.result

    def rows(
        self, candidates: Iterable[RowProgram], wanted: int, filters: Sequence[Filter] = ()
    ) -> Iterator[EndedProgram]:
        """Each candidate's end, in order, until so many rows are accepted.

        A candidate begins only while the accepted ones and those that may yet be are fewer than `wanted`. So it is
        the same candidates that begin, whatever the order of answers.
        """
        rules = [one.make_rule() for one in filters if isinstance(one, OrderedFilter)]

        yield from self._all(
            (apply_filters(one, filters) for one in candidates),
            wanted,
            lambda draft: next((DroppedRow(broken) for rule in rules if (broken := rule(draft))), draft),
        )

    def _all(
        self, programs: Iterator[Program[Any]], wanted: int, decide: Callable[[Any], Any]
    ) -> Iterator[EndedProgram]:
        source = _Questions(self, programs, wanted, decide)
        for end in self._asker.ask(source):
            source.take(end)
            yield from source.pop_ended()
        yield from source.pop_ended()

    def question(self, ask: Ask, index: int) -> Question:
        """What is sent."""
        messages = [self._message(one) if isinstance(one, Ask) else one for one in ask.before]
        version = _ASKED_AS_IT_IS
        if ask.prompt is not None:
            messages.append(self._message(ask))
            version = f"{ask.prompt}/{self._prompts[ask.prompt].version}"
        model = "" if ask.model == GENERATOR else ask.model
        return Question(messages, index, ask.sample, f"{version}/{self._seed}", model=model)

    def note(self, end: Reply | Failure) -> None:
        """Count an answer, or a question without one."""
        role = end.question.model or GENERATOR
        if isinstance(end, Failure):
            self.failures.setdefault(role, Counter())[end.reason] += 1
            return
        use = self.uses.setdefault(role, ModelUse())
        use.asked += not end.recalled
        use.recalled += end.recalled
        if end.key not in self._paid:  # rows may share an answer
            self._paid.add(end.key)
            use.cost += self._asker.price(end.question.model).cost(end.said.tokens_in, end.said.tokens_out)

    def _message(self, ask: Ask) -> Json:
        assert ask.prompt is not None, "a message before a question must not be empty"
        return {"role": "user", "content": self._prompts[ask.prompt].fill(ask.values)}


class _Questions:
    """Questions of programs. It may have none now and some later: an asker looks again after each answer."""

    def __init__(
        self, runner: ProgramRunner, programs: Iterator[Program[Any]], wanted: int, decide: Callable[[Any], Any]
    ) -> None:
        self._runner, self._programs, self._wanted, self._decide = runner, enumerate(programs), wanted, decide
        self._ready: deque[Question] = deque()
        self._of: dict[int, tuple[_Running, int]] = {}
        self._undecided: dict[int, EndedProgram] = {}  # ended, but not yet all before it
        self._ended: list[EndedProgram] = []
        self._running = self._hopeful = self._accepted = self._next_index = self._next_number = 0

    def __iter__(self) -> Iterator[Question]:
        return self

    def __next__(self) -> Question:
        while not self._ready and self._running + self._hopeful + self._accepted < self._wanted:
            if (begun := next(self._programs, None)) is None:
                break
            self._running += 1
            self._advance(_Running(EndedProgram(begun[0], None), begun[1]), None)
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def pop_ended(self) -> list[EndedProgram]:
        """Programs that have ended since the last call."""
        found, self._ended = self._ended, []
        return found

    def take(self, end: Reply | Failure) -> None:
        """Give an answer to the program that waits for it."""
        running, place = self._of.pop(end.question.index)
        self._runner.note(end)
        running.noted[place]["key"] = end.key
        if isinstance(end, Reply):
            truncated = end.said.ending == "truncated"
            answer = ModelAnswer.of(end.said.text, running.noted[place], truncated, end.said.thought)
            running.answers[place] = answer
            running.ended.note_thought(answer)
            running.ended.truncated += truncated
        else:
            running.answers[place] = NoAnswer(end.reason)
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
            running.noted.append({"prompt": question.template.rpartition("/")[0], "model": ask.model})
            self._ready.append(question)
        return None

    def _end(self, running: _Running, result: Any) -> None:
        if isinstance(result, Draft):
            running.ended.asked = [*(dict(one.asked) for one in result.earlier), *running.ended.asked]
            running.ended.truncated += sum(one.truncated for one in result.earlier)
            for one in result.earlier:
                running.ended.note_thought(one)
        running.ended.result = result
        self._running -= 1
        self._hopeful += _may_be_kept(result)
        self._undecided[running.ended.number] = running.ended
        while (ended := self._undecided.pop(self._next_number, None)) is not None:
            self._next_number += 1
            if _may_be_kept(ended.result):
                self._hopeful -= 1
                ended.result = self._decide(ended.result)
                self._accepted += _may_be_kept(ended.result)
            self._ended.append(ended)


def _may_be_kept(result: Any) -> bool:
    return not isinstance(result, str | DroppedRow)


def row_of(ended: EndedProgram, draft: Draft, facts: Mapping[str, Json]) -> dict[str, Json]:
    """A line of rows.jsonl, without its id. A given row has its own generator in `more`, and further models."""
    licence = {"licence": draft.licence} if draft.licence else {}
    # Thoughts before the last answer, and before both of a preference. Templates of reasoning models leave those of
    # earlier turns out; they are in the journal.
    pair = {f"{name}_thought": draft.more.get(name) for name in ("chosen", "rejected")}
    last: dict[str, Json] = {"thought": list(draft.messages), **pair}
    ends = {name: one[-1] for name, one in last.items() if is_conversation(one)}
    texts = {name: str(one.get("content")) for name, one in ends.items() if one["role"] == "assistant"}
    known: dict[str, Json] = {name: ended.thoughts[text] for name, text in texts.items() if text in ended.thoughts}
    known |= {name: draft.more[name] for name in ("generator",) if name in draft.more}
    known |= {"models": {**draft.more["models"], **facts["models"]}} if "models" in draft.more else {}
    # Beside two answers to choose from the messages are a `prompt`, as trainers ask.
    is_pair = all(is_conversation(draft.more.get(name)) for name in ("chosen", "rejected"))
    column = "prompt" if is_pair and "prompt" not in draft.more else "messages"
    return {
        column: [dict(message) for message in draft.messages], **draft.more, "parents": dict(draft.parents),
        "scores": dict(draft.scores), "verifier": draft.verifier, "asked": ended.asked, "truncated": ended.truncated,
        **facts, **licence, **known,
    }  # fmt: skip
