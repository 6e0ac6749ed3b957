"""Asks through files: questions go out for OpenAI's batch API, and the next run reads its files of results."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from nemo_vfm.asking.answer_key import answer_key
from nemo_vfm.asking.batch_requests import request_line, results, write_requests, written_keys
from nemo_vfm.asking.budget import Budget, Cost, Price, estimated_tokens
from nemo_vfm.asking.journal import Journal, OpenJournal
from nemo_vfm.asking.question import Failure, Question, Reply
from nemo_vfm.asking.recall import concealed, recalled
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.network.chat import Chat

_LONGEST_KEY = 64  # of a custom_id


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
        most_requests: in one file.
        most_mb: of one file, in 10^6 bytes.
        budget: what they may cost, at the prices of the batch API; None limits nothing.
    """

    def __init__(
        self, *, chat: Chat, journal: Journal, folder: Path, most_requests: int = 50_000, most_mb: float = 200.0,
        budget: Budget | None = None,
    ) -> None:  # fmt: skip
        if most_requests < 1 or most_mb <= 0:
            raise ValueError(f"most_requests {most_requests} and most_mb {most_mb} must be at least 1 and above 0")
        self.chat, self.journal, self.folder = chat, journal, Path(folder)
        self.most_requests, self.most_mb = most_requests, most_mb
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
            BudgetSpent: the next request might cost more than is left; those before it are written.
            UserError: the journal is in use.
        """
        with self.journal.open() as journal:
            failed = self._read(journal)
            waiting: dict[str, list[Question]] = {}
            identity = self.chat.identity()
            for question in questions:
                key = answer_key(identity, question)
                if (end := _end(journal, failed, question, key)) is not None:
                    if isinstance(end, Reply):
                        self.budget.settle(Cost(), self._price.cost(end.said.tokens_in, end.said.tokens_out))
                    yield end
                else:
                    waiting.setdefault(key, []).append(question)
            yield from self._write(waiting)

    def _read(self, journal: OpenJournal) -> dict[str, str]:
        """Keep the answers among the results; why there is none for the others, by key."""
        failed = {}
        for key, result in results(self.folder / "results"):
            if isinstance(result, str):
                failed[key] = result
            elif result.ending == "blocked":
                failed[key] = "the model declined"
            elif recalled(journal, key) is None:
                journal.put(key, asdict(concealed(result)))
        return failed

    def _write(self, waiting: dict[str, list[Question]]) -> Iterator[Failure]:
        """Write what was not written before; what must not be sent is a failure."""
        before, lines, stop = written_keys(self.folder), [], None
        for key in waiting.keys() & before:
            self.budget.reserve(self._cost(waiting[key][0]))
        for key in sorted(waiting.keys() - before):
            try:
                line, cost = self._line(key, waiting[key][0]), self._cost(waiting[key][0])
            except NemoVfmError as error:
                yield from (Failure(question, str(error), key) for question in waiting[key])
                continue
            if not self.budget.reserve(cost):
                stop = self.budget.stop(cost)
                break
            lines.append(line)
        most_bytes = int(self.most_mb * 1e6)
        files = write_requests(lines, self.folder, most=self.most_requests, most_bytes=most_bytes)
        if stop is not None:
            raise stop
        if files or waiting.keys() & before:
            raise self._pending(files, len(waiting.keys() & before))

    def _cost(self, question: Question) -> Cost:
        if not self.budget.limits:
            return Cost()
        return self._price.cost(estimated_tokens(question.built()), self.chat.longest_answer_tokens())

    def _line(self, key: str, question: Question) -> bytes:
        if len(key) > _LONGEST_KEY:
            raise ValueError(f"the key {key!r} is longer than the {_LONGEST_KEY} characters of a custom_id")
        return request_line(key, self.chat.endpoint.encoded(self.chat.request(question.built())))

    def _pending(self, files: list[Path], before: int) -> BatchPending:
        written = f"wrote {', '.join(file.name for file in files)} to {self.folder}. " if files else ""
        return BatchPending(
            f"{written}{before} questions of earlier files have no result yet. Submit the files as a batch, put its "
            f"results into {self.folder / 'results'}, and run again"
        )


def _end(journal: OpenJournal, failed: dict[str, str], question: Question, key: str) -> Reply | Failure | None:
    if (said := recalled(journal, key)) is not None:
        return Reply(question, said, key, recalled=True)
    if key in failed:
        return Failure(question, failed[key], key, blocked=failed[key] == "the model declined")
    return None
