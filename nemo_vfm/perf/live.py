# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever torch computes under it in, the bytes of the tensors that are alive out, at any moment and at the fullest.

Memory is counted by storages, from the operation that makes one until its last tensor is gone; so fake tensors, which
have none, are counted as real ones would be. What a kernel takes for itself while it runs is not seen.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch's own making
    """Counts while it is entered.

    Args:
        known: tensors that were there before and do not count.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0  #: bytes alive
        self._grown = [0]  # what was alive, each time that it had grown
        self._sizes: dict[int, int] = {}
        self._known = {tensor.untyped_storage()._cdata: tensor for tensor in known}

    def grown(self) -> list[int]:
        """What was alive at the last call, and after each growth since then."""
        grown, self._grown = self._grown, [self.now]
        return grown

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """See `TorchDispatchMode`."""
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._born(tensor)
        return made

    def _born(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        if key in self._sizes or key in self._known:
            return
        self._sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self._grown.append(self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
