"""Writes fake Slurm programs that note their requests and run nothing."""

import shlex
from pathlib import Path

#: In bash, which begins sooner than Python. What is asked is kept as words, each with a zero byte behind.
PROGRAM = """\
#!/bin/bash
folder={folder} name="${{0##*/}}"
printf '%s\\0' "$name" "$@" $'\\n' >> "$folder/asked"
[[ -e $folder/$name.refuses ]] && {{ cat "$folder/$name.refuses" >&2; exit 1; }}
case "$name" in
  sbatch)
    number="$(( $(wc -l < "$folder/jobs.all") + 101 ))" reason=Priority
    cat "${{!#}}" > "$folder/$number.sh"
    env -0 > "$folder/$number.environment"
    [[ " $*" == *" --dependency="* ]] && reason=Dependency
    echo "$number PENDING $reason" | tee -a "$folder/jobs" >> "$folder/jobs.all"
    echo "$number" ;;
  scancel) for number; do sed -i "s/^$number .*/$number CANCELLED None/" "$folder/jobs"; done ;;
  squeue) while read -r number state reason; do
      echo "$number|$number|$state|$reason|1:00:00|2026-01-01T00:00:00|n1|name"; done < "$folder/jobs" ;;
  sinfo) [[ " $* " == *" --format=%P "* ]] && echo 'debug*' || echo 'n1|16|2000|(null)' ;;
  srun) printf 'MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n' ;;
esac
"""


class FakeQueue:
    """A queue in which nothing ever runs; `folder` is for the programs (`bin/`) and what they note."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(parents=True)
        (folder / "jobs").touch()
        (folder / "jobs.all").touch()  # also those that are forgotten: no number is given twice
        for name in ("sbatch", "squeue", "scancel", "sinfo", "srun"):
            (self.bin / name).write_text(PROGRAM.format(folder=shlex.quote(str(folder))))
            (self.bin / name).chmod(0o755)

    def asked(self, name: str) -> list[list[str]]:
        """The words of each call of one program."""
        file = self.folder / "asked"
        calls = [call.split("\0") for call in file.read_text().split("\0\n\0")[:-1]] if file.exists() else []
        return [words for called, *words in calls if called == name]

    def submitted(self, number: int) -> bytes:
        """The script of a job, as sbatch got it."""
        return (self.folder / f"{number}.sh").read_bytes()

    def environment(self, number: int) -> list[str]:
        """Names of the variables that sbatch saw."""
        return [entry.partition("=")[0] for entry in (self.folder / f"{number}.environment").read_text().split("\0")]

    def now(self, number: int, state: str, reason: str = "None") -> None:
        """A job's state from here on."""
        others = [line for line in (self.folder / "jobs").read_text().splitlines() if line.split()[0] != str(number)]
        (self.folder / "jobs").write_text("\n".join([*others, f"{number} {state} {reason}", ""]))

    def forgets(self) -> None:
        """All jobs, as Slurm does some minutes after their ends."""
        (self.folder / "jobs").write_text("")

    def refuse(self, name: str, words: str) -> None:
        """Let a program fail with these words from here on."""
        (self.folder / f"{name}.refuses").write_text(words)
