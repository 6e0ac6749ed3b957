"""Asks through files: questions go out for OpenAI's batch API, and the next run reads its files of results."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from nemo_vfm.asking.budget import Budget, Price, TokenCost, estimated_tokens
from nemo_vfm.asking.journal import Journal, find_answer, without_secrets
from nemo_vfm.asking.question import Failure, Question, Reply, answer_key
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.network.chat import Chat, ChatAnswer, said_in
from nemo_vfm.core.network.endpoint import EndpointError
from nemo_vfm.core.network.http_connection import one_line
from nemo_vfm.core.storage.files import open_regular, write_bytes
from nemo_vfm.core.types.json_value import Json

_LONGEST_KEY = 64  # of a custom_id


def results(folder: Path) -> Iterator[tuple[str, ChatAnswer | str]]:
    """(key, answer or why there is none) of every line in the files of results in a folder, whatever their names."""
    for file in sorted(folder.glob("*.jsonl")):
        unreadable = 0
        for key, entry in _entries(file):
            if key:
                yield key, _result(entry)
            unreadable += not key
        if unreadable:
            warn(f"{file}: {unreadable} lines are not results of a batch; expected custom_id, and response or error")


def _groups(lines: Iterable[bytes], most: int, max_bytes: int) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for line in lines:
        if group and (len(group) == most or size + len(line) > max_bytes):
            yield group
            group, size = [], 0
        group.append(line)
        size += len(line)
    if group:
        yield group


def _entries(file: Path) -> Iterator[tuple[str, Json]]:
    """(key, entry) of each line; an empty key where it is none of ours."""
    with open_regular(file) as data:
        for line in data:
            entry: Json = None
            with suppress(ValueError, RecursionError):
                entry = json.loads(line)
            match entry:
                case {"custom_id": str(key)}:
                    yield key, entry
                case _:
                    yield "", None


def _result(entry: Json) -> ChatAnswer | str:
    match entry:
        case {"response": {"status_code": 200, "body": body}}:
            try:
                return said_in(body, 0.0)
            except EndpointError as error:
                return str(error)
        case {"response": {"status_code": status, "body": body}}:
            return one_line(f"the service answered {status}: {json.dumps(body)}")
        case {"error": reason}:
            return one_line(f"the batch says {json.dumps(reason)}")
    return "the batch has neither response nor error for it"


class BatchPending(UserError):
    """Questions wait for a batch that somebody has to send off; the same run goes on with its results."""


class BatchAsker:
    """Takes the place of an `Asker` where answers may take a day and cost less. It opens no connection.

    The first run writes `requests-*.jsonl` into `folder`, and ends. Send these off, put the files of results and of
    errors into `folder/results`, and run again: what was answered goes to the journal. A failure is one as long as its
    line lies there; take the file away to have the question written again.

    Args:
        chat: the model. Its endpoint is not asked, but its permissions hold for what is written.
        journal: where answers are kept.
        folder: for the files.
        max_requests: in one file.
        max_mb: of one file, in 10^6 bytes.
        budget: what they may cost, at the prices of the batch API; None limits nothing.
    """

    def __init__(
        self, *, chat: Chat, journal: Journal, folder: Path, max_requests: int = 50_000, max_mb: float = 200.0,
        budget: Budget | None = None,
    ) -> None:  # fmt: skip
        if max_requests < 1 or max_mb <= 0:
            raise ValueError(f"max_requests {max_requests} and max_mb {max_mb} must be at least 1 and above 0")
        self.chat, self.journal, self.folder = chat, journal, Path(folder)
        self.max_requests, self.max_mb = max_requests, max_mb
        self.budget = Budget() if budget is None else budget
        self._price = self.budget.price_of(chat.model_name())

    def ready(self) -> None:
        """There is nothing that could be absent."""

    def price(self, model: str = "") -> Price:
        """Of the model; it has no others."""
        return self._price

    def ask(self, questions: Iterable[Question]) -> Iterator[Reply | Failure]:
        """A reply or failure for each question that has a result.

        Raises:
            BatchPending: some have none; their requests are written.
            BudgetExceeded: the next request might cost more than is left; those before it are written.
            UserError: the journal is in use.
        """
        with self.journal.open() as journal:
            failed = {}  # why there is no answer, by key; answers are kept
            for key, result in results(self.folder / "results"):
                if isinstance(result, str):
                    failed[key] = result
                elif result.ending == "blocked":
                    failed[key] = "the model declined"
                elif find_answer(journal, key) is None:
                    journal.put(key, asdict(without_secrets(result)))
            waiting: dict[str, list[Question]] = {}
            identity = self.chat.identity()
            for question in questions:
                key = answer_key(identity, question)
                if (said := find_answer(journal, key)) is not None:
                    self.budget.settle(TokenCost(), self._price.cost(said.tokens_in, said.tokens_out))
                    yield Reply(question, said, key, recalled=True)
                elif key in failed:
                    yield Failure(question, failed[key], key, blocked=failed[key] == "the model declined")
                else:
                    waiting.setdefault(key, []).append(question)
            yield from self._write(waiting)

    def _write(self, waiting: dict[str, list[Question]]) -> Iterator[Failure]:
        """Write what was not written before; what must not be sent is a failure."""
        files = [*self.folder.glob("requests-*.jsonl")]
        before, lines, exceeded = {key for file in files for key, _ in _entries(file) if key}, [], None
        for key in waiting.keys() & before:
            self.budget.reserve(self._cost(waiting[key][0]))
        for key in sorted(waiting.keys() - before):
            try:
                if len(key) > _LONGEST_KEY:
                    raise ValueError(f"the key {key!r} is longer than the {_LONGEST_KEY} characters of a custom_id")
                body = self.chat.endpoint.encode(self.chat.request(waiting[key][0].build_messages()))
                cost = self._cost(waiting[key][0])
            except NemoVfmError as error:
                yield from (Failure(question, str(error), key) for question in waiting[key])
                continue
            if not self.budget.reserve(cost):
                exceeded = self.budget.exceeded_error(cost)
                break
            head = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions"}
            lines.append(json.dumps(head).encode()[:-1] + b', "body": ' + body + b"}\n")
        written = list[str]()
        for group in _groups(lines, self.max_requests, int(self.max_mb * 1e6)):
            data = b"".join(group)
            written.append(f"requests-{hashlib.sha256(data).hexdigest()[:12]}.jsonl")
            write_bytes(self.folder / written[-1], data)
        if exceeded is not None:
            raise exceeded
        if written or waiting.keys() & before:
            wrote = f"wrote {', '.join(written)} to {self.folder}. " if written else ""
            raise BatchPending(
                f"{wrote}{len(waiting.keys() & before)} questions of earlier files have no result yet. Submit the "
                f"files as a batch, put its results into {self.folder / 'results'}, and run again"
            )

    def _cost(self, question: Question) -> TokenCost:
        if not self.budget.is_limited:
            return TokenCost()
        return self._price.cost(estimated_tokens(question.build_messages()), self.chat.longest_answer_tokens())
