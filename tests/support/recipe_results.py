"""Reads the numbers, times and files that recipes' headers promise, and compares them with a run."""

import json
import math
import operator
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean
from typing import Any

from nemo_vfm.config.locate import locate
from nemo_vfm.config.roots import header
from nemo_vfm.core.types.job import DONE, LOCK, RECORDS, made_by
from nemo_vfm.core.types.json_value import Json
from tests.support.repository import ROOT, where, yaml_files

UNMEASURED = "no reference result yet"
#: A number is no part of a name, such as H.264, dlrm_1 or docs/2.
_NUMBER = re.compile(r"(?<![\w./-])\d+(?:[.,]\d+)*")
#: A file or a folder: `import/ledger.json`, `.nv-meta/`, `samples/*.mp4`, `batches/NNNNNN.safetensors`.
_FILE = re.compile(
    r"(?<![\w./*-])(?<!as )(?!docs/)"
    r"(?:[\w.*-]+/)*(?:[\w*-]+\.(?:jsonl?|parquet|txt|mp4|html|safetensors|yaml)|[\w.-]+/)(?!\w)"
)
_LIKE = re.compile(r"\bas (\w+)\.yaml")
_TIME = re.compile(r"(?:about )?(a|half a|a few|\d+) (second|minute)s?(?: on 2 cores)?")
_COUNTS = {"a": 1.0, "a few": 5.0, "half a": 0.5}
#: Other machines, and cores that are shared, are slower and quicker.
_OFF = 3.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in a header's `Expected`, and the same of a run.

    Args:
        said: a pattern of the header's words, with the number as its one group.
        found: reads the number from a run folder.
        holds: whether what was found agrees with what was said, in this order.
    """

    said: str
    found: Callable[[Path], float]
    holds: Callable[[float, float], bool]


def near(off: float) -> Callable[[float, float], bool]:
    """Equal but for `off`, either way: other processors round otherwise, and a training ends a little elsewhere."""
    return lambda found, said: abs(found - said) <= off


def in_json(name: str, *keys: str) -> Callable[[Path], float]:
    """A number of a JSON file of the run."""

    def found(folder: Path) -> float:
        value = _json(folder / name)
        for key in keys:
            value = value[key]
        return float(value)

    return found


def metric(key: str) -> Callable[[Path], float]:
    """The last value of a column of the step `train`."""
    return lambda folder: _column(folder / "train", key)[-1]


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _column(folder: Path, key: str) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line[key] for line in lines if key in line]


def _grammars_perplexity(folder: Path) -> float:
    """Per token, of somebody who knows the grammar of the stories."""
    tokens, nats = _json(folder / "tokens/tokens/tokens.json"), _json(folder / "stories/stories.json")["nats_per_story"]
    return math.exp(nats * tokens["documents"] / tokens["tokens"])


def _percent_of_texts(key: str) -> Callable[[Path], float]:
    return lambda folder: 100 * float(_json(folder / "judge/judged.json")[key])


def _right_videos(what: str) -> Figure:
    """Of the quickstart's prompts, those whose video is right in this."""

    def found(folder: Path) -> float:
        measured = _json(folder / "evaluate/evaluation.json")
        return float(round(measured[f"{what}_accuracy"] * measured["num_prompts"]))

    return Figure(rf"{what} right in (\d+) or more", found, operator.ge)


_KEPT = Figure(r"with (\d+) ", in_json("ledger.json", "rows", "kept"), operator.eq)
#: Recipes that take nothing of the user's -> every number of their `Expected`.
FIGURES: dict[str, tuple[Figure, ...]] = {
    "recipes/diffusion/train_autoencoder.yaml": (
        Figure(r"val_psnr_db of ([\d.]+)", metric("val_psnr_db"), near(1.0)),
        Figure(r"val_ssim of ([\d.]+)", metric("val_ssim"), near(0.04)),
    ),
    "recipes/lightning/boring.yaml": (
        Figure(r"from about ([\d.]+)", lambda folder: mean(_column(folder, "loss")[:16]), near(0.2)),
        Figure(r"to below ([\d.]+)", lambda folder: mean(_column(folder, "loss")[-64:]), operator.lt),
    ),
    "recipes/llm/distil_stories.yaml": (
        Figure(r"perplexity ([\d.]+)", metric("val_perplexity"), near(0.03)),
        Figure(r"stories, ([\d.]+)", lambda folder: _column(folder / "alone", "val_perplexity")[-1], near(0.04)),
        Figure(r"and ([\d.]+)", lambda folder: _column(folder / "teacher", "val_perplexity")[-1], near(0.02)),
    ),
    "recipes/llm/stories.yaml": (
        Figure(r"perplexity ([\d.]+)", lambda folder: math.exp(metric("val_loss")(folder)), near(0.02)),
        Figure(r"([\d.]+) is the lower bound", _grammars_perplexity, near(0.01)),
        Figure(r"(\d+) % of sentences", _percent_of_texts("right_sentences"), near(5)),
        Figure(r"(\d+) % of whole texts", _percent_of_texts("grammatical"), near(15)),
    ),
    "recipes/quickstart.yaml": (
        Figure(r"of (\d+) prompts", in_json("evaluate/evaluation.json", "num_prompts"), operator.eq),
        *map(_right_videos, ("colour", "direction", "shape")),
    ),
    "recipes/recommendation/daily.yaml": (
        Figure(r"an AUC of ([\d.]+)", in_json("compare/measures.json", "measures", "day_1_and_2", "auc"), near(0.005)),
        Figure(r"first day alone ([\d.]+)", in_json("compare/measures.json", "measures", "day_1", "auc"), near(0.005)),
        Figure(r"teacher ([\d.]+)", in_json("compare/measures.json", "measures", "teacher", "auc"), near(0.002)),
    ),
    "recipes/recommendation/dlrm_teacher.yaml": (
        Figure(r"an AUC of ([\d.]+)", in_json("compare/comparison.json", "score_auc"), near(0.003)),
        Figure(r"teacher has ([\d.]+)", in_json("compare/comparison.json", "teacher_auc"), near(0.002)),
        Figure(r"regression ([\d.]+)", in_json("compare/comparison.json", "logistic_auc"), near(0.003)),
    ),
    "recipes/recommendation/make_sessions.yaml": (),
    "recipes/recommendation/recd_session.yaml": (
        Figure(r"val_auc ([\d.]+)", metric("val_auc"), near(0.01)),
        Figure(
            r"log has ([\d.]+)", in_json("log/sessions.json", "measured", "teacher", "held_out", "auc"), near(0.003)
        ),
    ),
    "recipes/synthetic/filter_rows.yaml": (
        _KEPT,
        Figure(r"of the first (\d+) rows", in_json("ledger.json", "rows", "in"), operator.eq),
    ),
    "recipes/curation/random_models.yaml": (),
    "recipes/recommendation/make_log_files.yaml": (),
    "recipes/synthetic/shapes.yaml": (
        Figure(r"^(\d+) H\.264", lambda folder: len(list(folder.glob("*.mp4"))), operator.eq),
    ),
    **{where(path): (_KEPT,) for path in yaml_files("recipes/synthetic") if path.stem not in ("filter_rows", "shapes")},
}


def unread_numbers(recipe: str) -> list[str]:
    """Numbers of a header's `Expected` that no figure compares."""
    expected = header(ROOT / recipe).expected
    read = {match.span(1) for one in FIGURES.get(recipe, ()) for match in re.finditer(one.said, expected)}
    return [found[0] for found in _NUMBER.finditer(expected) if found.span() not in read]


def require_figures(recipe: str, folder: Path) -> None:
    """A run's figures are those of the header."""
    expected = header(ROOT / recipe).expected
    for one in FIGURES[recipe]:
        said = re.search(one.said, expected)
        assert said, f"{recipe}: no '{one.said}' in its Expected: {expected}"
        found = one.found(folder)
        assert one.holds(found, float(said[1])), f"{recipe}: {found} was found where its header says '{said[0]}'"


def said_s(recipe: str) -> float | None:
    """Seconds of a header's `Time`; None where it has other units, such as seconds per clip."""
    said = _TIME.fullmatch(header(ROOT / recipe).time)
    if said is None:
        return None
    count = _COUNTS.get(said[1]) or float(said[1])
    return count * (60 if said[2] == "minute" else 1)


def require_time(recipe: str, cpu_s: float) -> None:
    """A run that takes so many CPU seconds lasts, on two cores of its own, between half of them and all."""
    said = said_s(recipe)
    assert said is not None and said / _OFF <= cpu_s and cpu_s / 2 <= said * _OFF, (
        f"{recipe}: it took {cpu_s:.0f} CPU seconds; its header says '{header(ROOT / recipe).time}'"
    )


def files(recipe: str) -> list[str]:
    """Files and folders that a header's `Expected` names, also by `as other.yaml`."""
    expected = header(ROOT / recipe).expected
    like = [name for other in _LIKE.findall(expected) for name in files(str(Path(recipe).with_name(f"{other}.yaml")))]
    return [*like, *_FILE.findall(expected)]


def missing_files(recipe: str, folder: Path) -> list[str]:
    """Of the files that a header names, those that a run has not left, neither as files nor as members of its tars."""
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    for path in folder.rglob("*.tar"):
        with tarfile.open(path) as tar:
            paths += [f"{path.stem}/{name.partition('.')[2]}" for name in tar.getnames()]  # KEY.text.safetensors
    wanted = {name: re.sub(r"N{2,}", "*", name.rstrip("/")) for name in files(recipe)}
    return [
        name for name, pattern in wanted.items() if not any(fnmatchcase(f"/{path}", f"*/{pattern}") for path in paths)
    ]


#: What jobs keep for themselves: to go on after a kill, or for the report.
_OWN = ("work", "portions", "plan.json", "*.lock", LOCK, DONE, *RECORDS)


def undeclared_files(folder: Path, job: Json) -> list[str]:
    """What jobs left in their folders and their classes do not say that they make, unless the recipe names it."""
    if "steps" in job:
        return [name for step, below in job["steps"].items() for name in undeclared_files(folder / step, below)]
    names, text = (*made_by(locate(job["_target_"], ["nemo_vfm.", "nemo."])), *_OWN), json.dumps(job)
    return [f"{folder.name}/{path.name}, by {job['_target_']}" for path in folder.iterdir()
            if not any(fnmatchcase(path.name, name) for name in names) and f'/{path.name}"' not in text]  # fmt: skip
