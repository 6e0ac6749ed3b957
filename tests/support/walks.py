"""Counts the files that a reader passes who follows one step, film, token or row through the code.

    python -m tests.support.walks [--json FILE]

A walk is one traced call: `files` are those of nemo_vfm in which a function ran, `moves` how often a call went to
another file than the call before, `calls` all calls. `own_frames` are our functions on the stack at `AdamW.step`.
`imports` are the files that building the smallest training loads. All threads count; generators as they resume.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from nemo_vfm.cli.main import main as nemo_vfm
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.train.module import TrainModule
from tests.support import films, served_http, tiny_training
from tests.support.repository import ROOT

OWN = str(ROOT / "nemo_vfm") + "/"
TRACED_STEP = 3  # the first ones also build what later ones have


@dataclass
class Walk:
    """What was passed; call it to walk."""

    files: dict[str, int] = field(default_factory=dict)
    moves: int = 0
    last: str = ""

    def note(self, code: CodeType) -> None:
        file = code.co_filename
        if file.startswith(OWN):
            self.files[file.removeprefix(OWN)] = self.files.get(file.removeprefix(OWN), 0) + 1
            self.moves += file != self.last
            self.last = file

    def figures(self, name: str) -> dict[str, int]:
        return {
            f"{name}_files": len(self.files),
            f"{name}_moves": self.moves,
            f"{name}_calls": sum(self.files.values()),
        }


@contextmanager
def walking(walk: Walk) -> Iterator[None]:
    """Note every call of this process, in all threads that are begun meanwhile as well."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            walk.note(frame.f_code)

    threading.setprofile_all_threads(profile) if sys.version_info >= (3, 12) else threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile_all_threads(None) if sys.version_info >= (3, 12) else threading.setprofile(None)


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """A method wrapped for a while."""
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def training(words: list[str], walk: Walk) -> int:
    """Trace one step of a run by the command line; returns how many of our frames AdamW.step runs below."""
    frames: list[int] = []

    def traced(step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: TrainModule, *args: Any, **kwargs: Any) -> Any:
            if self.fit.step + 1 != TRACED_STEP:
                return step(self, *args, **kwargs)
            with walking(walk):
                return step(self, *args, **kwargs)

        return wrapped

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
            frame, own = sys._getframe(), 0
            while frame is not None:
                own += frame.f_code.co_filename.startswith(OWN)
                frame = frame.f_back  # type: ignore[assignment]
            frames.append(own)
            return step(self, *args, **kwargs)

        return wrapped

    with replaced(TrainModule, "training_step", traced), replaced(torch.optim.AdamW, "step", counted):
        if status := nemo_vfm(["run", *words]):
            raise SystemExit(f"nemo-vfm run {' '.join(words)} ended with {status}")
    return frames[-1]


def dit_words(folder: Path) -> list[str]:
    """The smallest training: one block, four steps."""
    data = tiny_training.shards(folder / "shards")
    return [tiny_training.RECIPE, "--overlay", "smoke", f"data.shards={data}", f"run_dir={folder}/dit",
            "loop.duration=4 steps", "data.batch_size=4", "model.depth=1", "precision.compute=fp32",
            "data.val_fraction=0", "~loop.validation", "~callbacks.preview", "~callbacks.ema"]  # fmt: skip


def table_words(folder: Path) -> list[str]:
    """DLRM on a click log of 400 rows."""
    lines = [f"{n % 2},{n % 7},{n % 11},{n % 5},{n / 7:.3f}" for n in range(400)]
    (folder / "clicks.csv").write_text("\n".join(["click,user,item,category,price", *lines]) + "\n")
    return [str(ROOT / "recipes/recommendation/dlrm_log.yaml"), f"steps.import.source.paths=[{folder}/clicks.csv]",
            f"run_dir={folder}/dlrm", "steps.import.keep_negatives=1", "steps.train.data.batch_size=32",
            "steps.train.precision.compute=fp32"]  # fmt: skip


def film_of_six_clips(folder: Path, walk: Walk) -> None:
    """Curate one film, whose six shots are all kept, in this process."""
    (folder / "videos").mkdir()
    films.write_film(folder / "videos/film.mp4", *(films.pan(seed, 36) for seed in range(6)))
    job = films.job(folder / "videos", executor=Inline(isolated=False))
    (folder / "curated").mkdir()
    with walking(walk):
        job.run(Run(folder / "curated"))
    kept = json.loads((folder / "curated/ledger.json").read_text())["clips"]["kept"]
    if kept != 6:
        raise SystemExit(f"the film's six shots gave {kept} clips")


def three_tokens(folder: Path, walk: Walk) -> None:
    """Ask a server of this process for three tokens; the second time, when all is imported and warm."""
    served_http.model_folder(folder / "model")
    body = {"prompt": [5, 6, 7, 8], "max_tokens": 3, "temperature": 0}
    threading.setprofile(_note_in_threads(walk))
    try:
        with served_http.running(folder / "model") as server:
            server.ask(body)
            walk.files.clear()
            walk.moves = 0
            status, _, answer = server.ask(body)
            passed = Walk(dict(walk.files), walk.moves)
    finally:
        threading.setprofile(None)
    if status != 200 or answer["usage"]["completion_tokens"] != 3:
        raise SystemExit(f"the server answered {status}: {answer}")
    walk.files, walk.moves = passed.files, passed.moves


def _note_in_threads(walk: Walk) -> Callable[[FrameType, str, object], None]:
    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            walk.note(frame.f_code)

    return profile


def imports(words: list[str]) -> int:
    """Files of ours that composing and building the recipe loads."""
    recipe, changes = words[0], [word for word in words[1:] if "=" in word or word.startswith("~")]
    program = (
        "import sys\nfrom nemo_vfm.config import build, compose\n"
        f"build(compose({recipe!r}, {changes!r}, overlays=['smoke']))\n"
        "print(sum(name.startswith('nemo_vfm') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--files", action="store_true", help="name the files of each walk, with their calls")
    arguments = parser.parse_args()
    walks = {name: Walk() for name in ("dit_step", "table_step", "film", "tokens")}
    with tempfile.TemporaryDirectory() as there:
        folder, figures = Path(there), {}
        words = dit_words(folder)
        figures["own_frames"] = training(words, walks["dit_step"])
        figures["imports"] = imports(words)
        training(table_words(folder), walks["table_step"])
        film_of_six_clips(folder, walks["film"])
        three_tokens(folder, walks["tokens"])
    for name, walk in walks.items():
        figures |= walk.figures(name)
        if arguments.files:
            sys.stdout.write(
                f"{name}:\n" + "\n".join(f"  {calls:6} {file}" for file, calls in walk.files.items()) + "\n"
            )
    for name, figure in figures.items():
        sys.stdout.write(f"{name:<20} {figure:>7,}\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
