"""Makes the environment that `make setup` gives a user, and runs the commands of pages in it, made small.

It holds links to the packages that `make setup` has installed here, and to nothing of what came with `dev`; a second
installation of torch would take two minutes.
"""

import os
import re
import shutil
import subprocess
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import distribution
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import Requirement

from tests.house.test_packages import setup_lists
from tests.support import preloaded
from tests.support.films import pan, write_film
from tests.support.repository import CODE, ROOT

COPIED = ("nemo_vfm", "launcher", "conf", "recipes")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "Makefile", "constraints.txt")
NETWORK = "<!-- needs a network -->"  # a line before a block
BLOCK = re.compile(r"(?:^(<!--.*-->)\n+)?^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What a command of a block gets besides, so that it takes seconds.
SHORTER = (
    (re.compile(r"^(make demo.*)$"), r"\1 RECIPE='recipes/quickstart.yaml --overlay smoke'"),
    (re.compile(r"^(make demo INPUT.*)$"), r"\1 BIN=tests/words -o tests/words/python"),  # a copy: the first is none
    (re.compile(r"^(nemo-vfm run (?!.*--overlay).*)$"), r"\1 --overlay smoke"),
    (re.compile(r"\bruns/(\w+)(?![\w-])"), r"runs/\1-smoke"),  # where a run with that overlay lies
    (re.compile(r"^(nemo-vfm parity .*)$"), r"\1 --ranks 1 --quick"),
    (re.compile(r"duration=\d+ steps"), "duration=2 steps"),
    (re.compile(r'compose\(("\w+", \[.*?\])\)'), r'compose(\1, overlay=["smoke"])'),
)


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment, and the folder in which commands run.

    Args:
        folder: where.
        bin: its programs.
        shell: what `nemo-vfm` is in a shell; that of `bin` where None.
        told: what the last command that made it printed.
    """

    folder: Path
    bin: Path
    shell: preloaded.Shell | None = None
    told: str = ""

    def run(self, text: str, **more: str) -> str:
        """All that some lines of bash print; each must succeed."""
        left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        env = {name: value for name, value in os.environ.items() if name not in left_out}
        words = f"{self.shell.path}:{self.bin}" if self.shell else self.bin
        env |= {"PATH": f"{words}:{env['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        env |= self.shell.environment if self.shell else {}
        env |= {"PIP_COMPILE": "0", **more}  # half of an installation's time goes into modules that nobody imports
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=self.folder, env=env, capture_output=True,
                              text=True, timeout=580, pass_fds=(self.shell.fd,) if self.shell else ())  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


def fresh_checkout(folder: Path) -> Environment:
    """What `make setup` makes of a new checkout, its packages linked, with a folder of small videos in it."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name)  # with what is compiled, which each process would else do anew
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    (folder / "DIR").mkdir()
    for number in range(4):
        write_film(folder / "DIR" / f"{number}.mp4", pan(number, 48))
    venv.create(folder / ".venv")
    (site,) = (folder / ".venv").glob("lib/python*/site-packages")
    link_packages([*setup_lists()["RUNTIME"], "pip"], site)
    made = Environment(folder, folder / ".venv" / "bin")
    made.run("grep -v '^torch==' constraints.txt > .venv/constraints.txt")
    made.run("python -m pip install -q --no-deps --no-build-isolation -e . && make -t setup")
    return replace(made, shell=preloaded.Shell(made.bin / "python", folder))


def link_packages(requirements: Iterable[str], folder: Path) -> None:
    """Link what is installed here of some requirements, and of those that they need, into a folder."""
    for top in _installed(requirements):
        if not (folder / top.name).exists():
            (folder / top.name).symlink_to(top)


def reuse_compiled(site: Path) -> None:
    """Give what was installed of our packages what is compiled here of the same text; each process would else do so."""
    for package in CODE:
        for file in (site / package).rglob("*.py"):
            ours = ROOT / file.relative_to(site)
            compiled, copy = Path(cache_from_source(str(ours))), Path(cache_from_source(str(file)))
            if compiled.exists() and file.read_bytes() == ours.read_bytes():
                shutil.copystat(ours, file)  # Python compares its time
                copy.parent.mkdir(exist_ok=True)
                shutil.copy(compiled, copy)


def _installed(requirements: Iterable[str]) -> Iterator[Path]:
    """What lies in site-packages of these packages and of those that they need."""
    waiting, seen = list(map(Requirement, requirements)), set[str]()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        found = distribution(wanted.name)
        for one in map(Requirement, found.requires or ()):
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")):
                waiting.append(one)
        names = {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        yield from (Path(str(found.locate_file(name))) for name in sorted(names))


def blocks(page: str, language: str) -> Iterator[str]:
    """The blocks of a page that need no network."""
    for mark, kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if kind == language and mark != NETWORK:
            yield text


def shorter(text: str) -> str:
    """A block as it is, but for comments, and made small; or prose about one."""
    lines = [re.sub(r"\s+#.*", "", line) for line in re.sub(r"\\\n\s*", "", text).splitlines()]
    for pattern, instead in SHORTER:
        lines = [pattern.sub(instead, line) for line in lines]
    return "\n".join(lines)
