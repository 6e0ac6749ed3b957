"""Examine this machine: what works, what does not, and what to install; the text can be pasted into a report.

Encoders and decoders write and read two real frames, torch multiplies, and the first GPU multiplies in bf16. Each check
runs in its own process for a minute at most, so a library that crashes on import is one line of the table. Nothing is
changed. The states are ok, low (works, but too little of it), missing and broken. The status is 2 if something required
is missing or broken. Secrets and home folders are masked.
"""

import argparse
import json
import sys
from itertools import groupby
from pathlib import Path

_STYLES = {"ok": "green", "low": "yellow", "missing": "dim", "broken": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where runs would go."""
    parser.add_argument("--run-dir", metavar="DIR", type=Path, default=Path("runs"),
                        help="folder that runs are written to (default: runs)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0 where all that is needed works; 2 where something needed is missing or broken."""
    from nemo_vfm.cli.doctor.examine_machine import examine

    findings = examine(arguments.run_dir)
    stopping = [finding.name for finding in findings if finding.stops]
    if arguments.json:
        result = {"ok": not stopping, "findings": [finding.to_json() for finding in findings]}
        sys.stdout.write(json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        from nemo_vfm.cli.doctor.examine_machine import paste_ready
        from nemo_vfm.runtime.terminal import Terminal

        paper = Terminal()
        rows: list[tuple[str, ...]] = []
        for group, members in groupby(findings, key=lambda finding: finding.group):
            rows += [("",)] * bool(rows)
            rows.append((group,))
            rows += [(f"  {one.state}", one.name, paste_ready(one.detail)) for one in members]
        paper.table(rows, styles=_STYLES)
        hints = [finding for finding in findings if finding.hint]
        if hints:
            paper.line("\nwhat to do", "bold")
        for finding in hints:
            paper.line(f"  {finding.name}: {paste_ready(finding.hint)}")
        paper.line()
        paper.prose(
            "Everything required works." if not stopping else f"Required, and not working: {', '.join(stopping)}."
        )
    return 2 if stopping else 0
