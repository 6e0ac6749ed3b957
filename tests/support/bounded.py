"""Measures what checking each of many recipes costs, in a forked child for each.

The children start with everything imported, so what is measured is the recipe's own time and memory, above a base
that has already checked a harmless recipe. Each child also times a reference computation, so that a slow or busy
machine cancels out.
"""

import gc
import json
import os
import resource
import sys
import time
from pathlib import Path

from nemo_vfm.config import RecipeError, build, check, compose, trust_list

TRUST = trust_list(["tests.support.parts"])
LIMIT_S = 20


def examine(file: str, changes: list[str]) -> str:
    """What a user would be told, whatever verb was used."""
    try:
        composed = compose(file, changes)
        _ = composed.seed, composed.run_dir
        problems = check(composed, TRUST)
        if not problems:
            build(composed, TRUST)
        return str(RecipeError(problems)) if problems else ""
    except RecipeError as error:
        return str(error)


def yardstick() -> float:
    """Processor seconds of a piece of plain Python that takes about 0.02 s on an idle machine of 2024."""
    began = time.process_time()
    made = {str(number): ["x"] * 3 for number in range(60_000)}
    assert sum(isinstance(value, list) for value in made.values()) == len(made)
    return time.process_time() - began


def measured(file: str, changes: list[str]) -> dict[str, object]:
    """Seconds, peak memory in MB and the message of one recipe, in this process."""
    room = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    began = time.process_time()
    said = examine(file, changes)
    seconds = time.process_time() - began
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "yardstick_s": yardstick(), "peak_mb": peak_mb, "said": said, "room": room}


def in_child(case: dict[str, object]) -> dict[str, object]:
    """Measure in a copy of this process; an end by a signal or a traceback is a result too."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = measured(str(case["file"]), list(case["changes"]))
        except BaseException as error:
            found = {"crash": f"{type(error).__name__}: {str(error)[:200]}"}
        with os.fdopen(writer, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(text) if text else {"crash": f"ended with status {status}"}


def main() -> None:
    """Cases on stdin, results on stdout; the first case is the harmless one."""
    cases = [json.loads(line) for line in sys.stdin]
    examine(cases[0]["file"], cases[0]["changes"])
    gc.freeze()  # or each collection in a child copies the pages of all that the parent imported: 0.2 s a case
    for case in cases:
        sys.stdout.write(json.dumps(in_child(case)) + "\n")


if __name__ == "__main__":
    os.chdir(Path(sys.argv[1]))
    main()
