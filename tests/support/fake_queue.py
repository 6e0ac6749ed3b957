# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A folder in, programs named as those of Slurm out, which note what they are asked and run nothing."""

import json
import shlex
import sys
from pathlib import Path

PROGRAM = """\
import json, os, sys
from pathlib import Path
folder, name, words = Path({folder!r}), {name!r}, sys.argv[1:]
with (folder / "asked.jsonl").open("a") as log:
    log.write(json.dumps([name, *words]) + "\\n")
if (folder / f"{{name}}.refuses").exists():
    sys.exit((folder / f"{{name}}.refuses").read_text())
jobs = json.loads((folder / "jobs.json").read_text())
if name == "sbatch":
    number = str(101 + len(list(folder.glob("*.environment"))))
    (folder / f"{{number}}.sh").write_bytes(Path(words[-1]).read_bytes())
    (folder / f"{{number}}.environment").write_text("\\n".join(sorted(os.environ)))
    waits = any(word.startswith("--dependency=") for word in words)
    jobs[number] = ["PENDING", "Dependency" if waits else "Priority"]
    print(number)
elif name == "scancel":
    for number in words:
        jobs[number] = ["CANCELLED", "None"]
elif name == "squeue":
    for number, (state, reason) in jobs.items():
        print("|".join([number, number, state, reason, "1:00:00", "2026-01-01T00:00:00", "n1", "name"]))
elif name == "sinfo":
    print("debug*" if "--format=%P" in words else "n1|16|2000|(null)")
elif name == "srun":
    print("MPI plugin types are...\\n\\tnone\\n\\tpmi2")
(folder / "jobs.json").write_text(json.dumps(jobs))
"""


class FakeQueue:
    """A queue in which nothing ever runs.

    Args:
        folder: for the programs (`bin/`) and what they note.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(parents=True)
        (folder / "jobs.json").write_text("{}")
        for name in ("sbatch", "squeue", "scancel", "sinfo", "srun"):
            code = folder / f"{name}.py"
            code.write_text(PROGRAM.format(folder=str(folder), name=name))
            (self.bin / name).write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(str(code))} "$@"\n'
            )
            (self.bin / name).chmod(0o755)

    def asked(self, name: str) -> list[list[str]]:
        """The words of each call of one program."""
        file = self.folder / "asked.jsonl"
        calls = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [words for called, *words in calls if called == name]

    def submitted(self, number: int) -> bytes:
        """The script of a job, as sbatch got it."""
        return (self.folder / f"{number}.sh").read_bytes()

    def environment(self, number: int) -> list[str]:
        """Names of the variables that sbatch saw."""
        return (self.folder / f"{number}.environment").read_text().splitlines()

    def now(self, number: int, state: str, reason: str = "None") -> None:
        """A job's state from here on."""
        jobs = json.loads((self.folder / "jobs.json").read_text())
        (self.folder / "jobs.json").write_text(json.dumps({**jobs, str(number): [state, reason]}))

    def forgets(self) -> None:
        """All jobs, as Slurm does some minutes after their ends."""
        (self.folder / "jobs.json").write_text("{}")

    def refuse(self, name: str, words: str) -> None:
        """Let a program fail with these words from here on."""
        (self.folder / f"{name}.refuses").write_text(words)
