"""Runs Python in a network namespace of its own, where only loopback exists."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A second address, since names are not looked up where there is none but 127.0.0.1; and a name that has one here.
_UP = """ip link set lo up 2>/dev/null && ip address add 127.0.0.2/8 dev lo 2>/dev/null
hostname localhost 2>/dev/null || true; exec "$@" """


@cache
def can_unshare() -> bool:
    """Whether this machine lets us make such a network."""
    if not shutil.which("unshare"):
        return False
    return subprocess.run([*_words(), "true"], capture_output=True, check=False).returncode == 0


def _words() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--net", "--uts", *user, "sh", "-c", _UP, "sh"]


def start(text: str, *arguments: object, **options: object) -> subprocess.Popen:
    """Begin; where no network can be made, in that of the machine."""
    words = [*(_words() if can_unshare() else []), sys.executable, "-c", text, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True, text=True, **options)
