"""Keeps the windows that batches are cut of, and reads the next one while the last one is used."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from nemo_vfm.recsys.feature_table.row_order import WindowId
from nemo_vfm.recsys.feature_table.table_window import TableWindow

_KEPT = 3  # the one in use, the next, and the one before, which threads that are late still ask for


class WindowCache:
    """Windows by id, each read once by whoever asks first; others wait for it.

    Args:
        read: gives a window.
        following: gives the window that will be asked for after another; None reads none ahead.
    """

    def __init__(
        self, read: Callable[[WindowId], TableWindow], following: Callable[[WindowId], WindowId] | None = None
    ) -> None:
        self._read, self._following, self._lock = read, following, threading.Lock()
        self._windows: OrderedDict[WindowId, Future[TableWindow]] = OrderedDict()
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="table windows") if following else None

    def get(self, window: WindowId) -> TableWindow:
        """The window; raises what reading it raised."""
        future, is_ours = self._entry(window)
        if is_ours:
            self._fill(window, future)
        found = future.result()
        if self._ahead is not None and self._following is not None:
            following = self._following(window)
            ahead, is_new = self._entry(following)
            if is_new:
                self._ahead.submit(self._fill, following, ahead)
        return found

    def _entry(self, window: WindowId) -> tuple[Future[TableWindow], bool]:
        """Its place, and whether the caller has to fill it."""
        with self._lock:
            if window in self._windows:
                self._windows.move_to_end(window)
                return self._windows[window], False
            self._windows[window] = Future()
            while len(self._windows) > _KEPT:
                self._windows.popitem(last=False)
            return self._windows[window], True

    def _fill(self, window: WindowId, future: "Future[TableWindow]") -> None:
        try:
            future.set_result(self._read(window))
        except BaseException as error:
            future.set_exception(error)
