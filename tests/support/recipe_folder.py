"""Makes a folder of recipes and ingredients in which a test composes, checks and runs."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.cli.main import main
from nemo_vfm.config import ComposedRecipe, build, check, compose, trust_list
from tests.support import preloaded

ROOT = Path(__file__).resolve().parents[2]
TRUST = trust_list(["tests.support.parts"])
PARTS = "tests.support.parts"
WIDE = f"_target_: {PARTS}.Wide\n"


class Kitchen:
    """A working directory with `recipes/` and `conf/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> Path:
        """A file below the folder; `@` stands for the module of test components."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.replace("@", PARTS).encode())
        return path

    def compose(self, text: str, *overrides: str) -> ComposedRecipe:
        return compose(self.write("recipe.yaml", text), [word.replace("@", PARTS) for word in overrides])

    def problems(self, text: str, *overrides: str) -> str:
        """Every problem of a recipe, as the user sees it."""
        return "\n".join(problem.render() for problem in check(self.compose(text, *overrides), TRUST))

    def build(self, text: str, *overrides: str) -> object:
        return build(self.compose(text, *overrides), TRUST)

    def main(self, *words: str) -> int:
        """Run `nemo-vfm` in this process."""
        trusted = ("--trust", PARTS) if words[0] in ("run", "check") else ()
        return main([*(word.replace("@", PARTS) for word in words), *trusted])

    def forked(self, *words: str) -> int:
        """Run `nemo-vfm` in a copy of this process, which may kill itself; minus the signal, or the exit status."""
        child = os.fork()
        if child == 0:
            status = 99
            try:
                status = self.main(*words)
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def command(self, *words: str, trust: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `nemo-vfm` in this folder, in a process of its own."""
        trusted: Sequence[str] = ("--trust", PARTS) if trust and words[0] in ("run", "check") else ()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        return preloaded.run([sys.executable, "-m", "nemo_vfm", *words, *trusted], cwd=self.folder, env=environment)
