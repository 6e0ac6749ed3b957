"""Splits prompts of users into two halves that share none, for fine-tuning and for preferences (2406.11704, 3.2)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Literal

from nemo_vfm.dedup.texts.normalize_text import normalize, words
from nemo_vfm.synth.programs.judgement import transcript
from nemo_vfm.synth.programs.row_program import (
    Ask,
    AskingFilter,
    Draft,
    DroppedRow,
    Program,
    RowProgram,
    RowTask,
    TaskPipeline,
    TaskSource,
    ended_row,
    say,
    texts_of,
)

Half = Literal["sft", "preference"]


class RealPrompts(TaskPipeline):
    """One half of given prompts. Which half a prompt is in follows from its words alone, in any run and any file.

    Prompts that differ in capitals, punctuation and white space only are in the same half, and so are conversations
    that begin alike. About 100 bytes of each distinct prompt are kept in memory.

    Args:
        tasks: the prompts.
        half: `sft`: the generator answers them, and what is flagged is dropped; `preference`: they stay tasks, for
            several models to answer, and flagged ones are among them, in the column `flagged`.
        sft_share: of all prompts that is in the half `sft`.
        guard: finds unsafe rows, in addition to the flags of the data; None uses the flags alone.
        salt: another text makes other halves.
    """

    def __init__(
        self, *, tasks: TaskSource, half: Half, sft_share: float = 0.5, guard: AskingFilter | None = None,
        salt: str = "",
    ) -> None:  # fmt: skip
        if not 0 < sft_share < 1:
            raise ValueError(f"sft_share must be above 0 and below 1, got {sft_share:g}")
        self.tasks, self.half, self.sft_share, self.guard, self.salt = tasks, half, sft_share, guard, salt

    def prompts(self) -> Mapping[str, frozenset[str]]:
        return {**self.tasks.prompts(), **({} if self.guard is None else self.guard.prompts())}

    def roles(self) -> Sequence[str]:
        return [*self.tasks.roles(), *([] if self.guard is None else self.guard.roles())]

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """Every prompt, also those of the other half and copies: the ledger counts them."""
        tasks = yield from self.tasks.all_tasks()
        return self._each(tasks)

    def _each(self, tasks: Iterable[RowTask]) -> Iterator[RowProgram]:
        seen = set[bytes]()
        for task in tasks:
            digest = blake2b(normalize(transcript(task.messages)).encode(), digest_size=16).digest()
            yield ended_row(DroppedRow("copy of an earlier prompt")) if digest in seen else self.row(task)
            seen.add(digest)

    def row(self, task: RowTask) -> RowProgram:
        """A prompt, with an answer in the half `sft`."""
        half = self.half
        if half_of(task, self.sft_share, self.salt) != half:
            return DroppedRow("prompt of the other half")
        rule: str | None = "flagged in the data" if task.flagged else None
        if rule is None and self.guard is not None:
            rule = yield from self.guard.rule_program(Draft(task.messages))
        more = {"flagged": rule or "", "generator": None} if half == "preference" else {}
        draft = Draft(task.messages, {**task.parents, "half": half}, licence=task.licence, more=more)
        if half == "preference":
            return draft
        if rule:
            return DroppedRow(rule)
        (answer,) = texts_of((yield [Ask(None, before=tuple(task.messages))]))
        return Draft([*task.messages, say("assistant", answer)], draft.parents, licence=task.licence)


def half_of(task: RowTask, sft_share: float, salt: str = "") -> Half:
    """By a hash of the words of the first turn of the user, without capitals, punctuation and white space."""
    first = next(str(message["content"]) for message in task.messages if message["role"] == "user")
    digest = sha256(f"{salt}\n{' '.join(words(first))}".encode()).digest()
    return "sft" if int.from_bytes(digest[:8], "big") < sft_share * 2**64 else "preference"
