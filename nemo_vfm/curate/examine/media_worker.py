"""Runs operations on media in a limited child process, and reports what went wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from nemo_vfm.core.errors import DataError
from nemo_vfm.curate.examine.sandbox import Child, ChildDied, InProcess, Limits, Operation, Reply
from nemo_vfm.curate.execute.work_units import Item, Tick, Worker


@dataclass(frozen=True, slots=True)
class MediaWork:
    """Settings of work on media.

    Args:
        operation: what is done with each item's request.
        limits: what the child may take.
        task: see `Child`.
    """

    operation: Operation
    limits: Limits = field(default_factory=Limits)
    task: str = "the work on it"

    def start(self, *, isolated: bool = True) -> Worker:
        """See `Work.start`; the child itself starts with the first item."""
        return _MediaWorker(
            Child(self.operation, self.limits, task=self.task) if isolated else InProcess(self.operation)
        )


class _MediaWorker:
    """Its parts are `Reply`s. One whose fact has `failed` says why the item ends there; one with `again` that all
    parts of the item before it are void, since the item was begun once more."""

    def __init__(self, child: Child | InProcess) -> None:
        self._child = child
        self._stopped = False

    def do(self, item: object) -> Iterator[object]:
        """See `Worker.do`."""
        assert isinstance(item, Item)
        if self._stopped:
            yield Reply({"failed": "its work was stopped"})
            return
        for attempt in (1, 2):
            try:
                yield from self._ask(item)
                return
            except ChildDied as error:
                # The file before it may have hurt the child: a second, fresh child tells the two apart.
                again = attempt == 1 and not self._stopped
                yield Reply({"again": True} if again else {"failed": str(error)})
                if not again:
                    return
            except DataError as error:
                yield Reply({"failed": str(error)})
                return

    def _ask(self, item: Item) -> Iterator[object]:
        for answer in self._child.ask(item.request, megapixels=item.megapixels):
            yield Tick(answer) if isinstance(answer, int) else answer

    def stop(self) -> None:
        """End the child, for good: a thread in the middle of an item would begin it anew in a fresh one."""
        self._stopped = True
        self._child.stop()


def valid(parts: list[object]) -> list[Reply]:
    """An item's replies, without those of an attempt that was given up."""
    replies = [part for part in parts if isinstance(part, Reply)]
    last = max((place for place, reply in enumerate(replies) if reply.fact.get("again")), default=-1)
    return replies[last + 1 :]
