"""Connects to the rendezvous store that the environment names, or says why it cannot be reached."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.sanitize import beginning

if TYPE_CHECKING:  # torch gives them out under the other name, but does not say so to a checker
    from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
else:
    from torch.distributed import PrefixStore, Store, TCPStore

__all__ = ["PrefixStore", "Store", "TCPStore", "address", "connect", "serve"]


def serve() -> tuple[Store, int]:
    """A store of this process, and the port that others on this machine reach it by."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return store, store.port


def connect(timeout_s: float, *, is_second: bool = False) -> Store:
    """The store that the environment names; each restart of torchrun's has a part of its own.

    Args:
        timeout_s: how long it may take to come, and each answer.
        is_second: one more connection of this process, which serves nothing.

    Raises:
        UserError: it is not reached, or its port is in use.
    """
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    host, _, port = address().rpartition(":")
    try:
        store = TCPStore(
            host, int(port), is_master=ranks.is_first() and not agents and not is_second, wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
        )  # fmt: skip
    except RuntimeError as error:
        if "EADDRINUSE" in str(error) or "already in use" in str(error):
            why = f"the port of {address()} is in use by another program; set MASTER_PORT to a free one"
        else:
            why = f"rank {ranks.rank()} cannot reach rank 0 at {address()} ({beginning(error)})"
        raise UserError(why) from error
    return PrefixStore(f"nemo_vfm/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def address() -> str:
    """Where the ranks meet, host:port. UserError if the environment does not say it."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UserError(f"this process is rank {ranks.rank()} of {ranks.count()}, but {missing[0]} is not set; start "
                        f"it through `nemo-vfm run`, torchrun or srun")  # fmt: skip
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
