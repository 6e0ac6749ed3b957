"""Gives the tests of files that belong together to one process, where xdist gives it those of a file."""

from collections.abc import Sequence
from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.longest import group


class _Numbered(list[str]):
    """Names whose places are known: xdist asks for that of each test, and searched 18,000 names."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._places = {name: place for place, name in enumerate(names)}

    def index(self, name: str, *_: Any) -> int:
        return self._places[name]


class FilesTogether(LoadFileScheduling):
    """As `--dist loadfile`, but for the groups of `longest`."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        self.registered_collections[node] = _Numbered(collection)
