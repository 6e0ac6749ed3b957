"""Measures how near an asker that does not know a server's capacity comes to one that does, and what a kill costs.

    python benchmarks/synth.py [--quick] [--json FILE] [--rows N] [--rounds N] [--kills N]

A server on loopback serves K = 32 questions at once, which its client is not told. Service times are log-normal (median
0.25 s, sigma 0.6); 2 % of the attempts end in a 500, 1 % hang until the client's time-out of 2.5 s. One server refuses
what comes beyond K with 429 and Retry-After: 1, the other queues it. The ideal is computed: the same drawn times for a
client that keeps exactly K under way, in order, tries again at once, and takes no time itself.

wall_over_ideal: wall time at the server that refuses, over the ideal. queued_over_ideal: at the one that queues.
The median of the rounds, each with draws of its own, the two servers in turns. Imports are not counted.
rows_lost, rows_doubled: rows that are absent, or there twice (in the result or in the journal), after the client was
killed by SIGKILL so many times at random moments and run again to the end, all times a fifth.
respent_over_in_flight: attempts at rows that had been answered, or were under way at a kill, over what was under way
at the kills by the client's own log.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.asking.drawn_service import TIMEOUT_S, K, Service, ideal_wall_s
from benchmarks.asking.limited_server import LimitedServer

ROOT = Path(__file__).resolve().parents[1]
Figures = dict[str, float]


async def client(url: str, rows: int, folder: Path, timeout_s: float) -> asyncio.subprocess.Process:
    """Start the asker."""
    words = ["-m", "benchmarks.asking.client", url, str(rows), str(folder), str(timeout_s)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, env=environment)


async def ended(process: asyncio.subprocess.Process, folder: Path) -> Any:
    """What the asker wrote; it must end well."""
    if await process.wait():
        raise SystemExit(f"the client ended with {process.returncode}")
    return json.loads((folder / "rows.json").read_text())


async def one_run(seed: int, rows: int, refuses: bool) -> tuple[float, float]:
    """(wall time over the ideal, the limit at the end)."""
    server = LimitedServer(Service(seed), refuses)
    listening, url = await server.start()
    with tempfile.TemporaryDirectory() as folder:
        found = await ended(await client(url, rows, Path(folder), TIMEOUT_S), Path(folder))
    listening.close()
    ideal_s = ideal_wall_s(server.service, rows)
    print(f"  {'refuses' if refuses else 'queues '}  seed {seed}: {found['seconds']:.2f} s, ideal {ideal_s:.2f} s, "
          f"limit at the end {found['limit']}, {server.refused} refusals")  # fmt: skip
    return found["seconds"] / ideal_s, found["limit"]


async def pace(rows: int, rounds: int) -> Figures:
    """Both servers in turns."""
    ratios: dict[bool, list[float]] = {True: [], False: []}
    limits: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(rounds):
        for refuses in (True, False):
            ratio, limit = await one_run(seed, rows, refuses)
            ratios[refuses].append(ratio)
            limits[refuses].append(limit)
    return {
        "wall_over_ideal": statistics.median(ratios[True]), "queued_over_ideal": statistics.median(ratios[False]),
        "limit_where_refused": statistics.median(limits[True]), "limit_where_queued": statistics.median(limits[False]),
    }  # fmt: skip


def in_flight(log: Path) -> int:
    """How many questions had begun and not ended when the log ended."""
    under_way: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        what, row = line.split(" ", 1)
        under_way[row] += 1 if what == "begins" else -1
    return sum(count for count in under_way.values() if count > 0)


async def killed(server: LimitedServer, process: asyncio.subprocess.Process, after: int, log: Path) -> int:
    """Kill the asker once the server has given so many more answers; how many questions were under way."""
    target = server.answered + after
    while server.answered < target and process.returncode is None:
        await asyncio.sleep(0.002)
    server.is_killing = True
    process.kill()
    await process.wait()
    await asyncio.sleep(0.1)  # until the server has noticed that all connections ended
    server.is_killing, server.run = False, server.run + 1
    count = in_flight(log)
    log.unlink()
    return count


async def kills(rows: int, count: int, seed: int = 0, scale: float = 0.2) -> Figures:
    """Kill the asker again and again, then let it end."""
    rng, server = random.Random(seed), LimitedServer(Service(1000 + seed, scale), refuses=True)
    listening, url = await server.start()
    with tempfile.TemporaryDirectory() as name:
        folder, under_way = Path(name), 0
        for _ in range(count):
            process = await client(url, rows, folder, TIMEOUT_S * scale)
            after = rng.randint(1, max(1, 2 * rows // (count + 2) - 1))
            under_way += await killed(server, process, after, folder / "log")
        found = await ended(await client(url, rows, folder, TIMEOUT_S * scale), folder)
        keys = [json.loads(line)["key"] for line in (folder / "answers.jsonl").read_text().splitlines()]
    listening.close()
    answered = [row for row, text in found["rows"] if text == str(row)]
    doubled = len(found["rows"]) - len({row for row, _ in found["rows"]}) + len(keys) - len(set(keys))
    print(f"  {count} kills: {under_way} questions under way at them, {server.respent} attempts paid for twice")
    lost = rows - len(set(answered))
    return {"rows_lost": lost, "rows_doubled": doubled, "respent_over_in_flight": server.respent / max(1, under_way)}


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 rows, one round, 2 kills")
    parser.add_argument("--rows", type=int, help="default 2,000")
    parser.add_argument("--rounds", type=int, help="default 3")
    parser.add_argument("--kills", type=int, help="default 20")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    arguments = parser.parse_args()
    rows = arguments.rows or (1000 if arguments.quick else 2000)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    count = arguments.kills if arguments.kills is not None else (2 if arguments.quick else 20)
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {rows} rows, K {K}"
    )
    figures = asyncio.run(pace(rows, rounds)) | asyncio.run(kills(rows, count))
    for name, value in figures.items():
        print(f"{name}: {value:.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
