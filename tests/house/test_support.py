"""Tests that docs/reference/support.md has a line for each extra of setup.py, and says what was tested."""

import ast
import re

from tests.support.repository import ROOT, tree

PAGE = (ROOT / "docs/reference/support.md").read_text(encoding="utf-8")
STATE = re.compile(r"\*\*(run|loads)\*\*[^|]*, 20\d\d-\d\d-\d\d|\*\*not run\*\*")
#: What people ask about first, whether we have it or not.
ASKED = ("Transformer Engine", "Megatron-Core", "NeMo 3.0", "TorchRec", "Ray", "Slurm", "H100", "H200", "B200",
         "decord", "PyAV", "torchcodec", "Weights & Biases", "MLflow", "S3", "Python 3.11", "Python 3.12",
         "lightning 2.4", "lightning 2.6", "omegaconf 2.3", "omegaconf 2.4")  # fmt: skip


def rows() -> list[list[str]]:
    """The cells of every line of every table, but for their heads."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [
        row for row in cells if row[0] not in ("what", "folder") and not set(row[0]) <= {"-"} and "tests/" not in row[0]
    ]


def extras() -> set[str]:
    for node in tree(ROOT / "setup.py").body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EXTRAS":
            return {key.value for key in node.value.keys}
    raise AssertionError("setup.py has no EXTRAS")


def test_every_extra_has_its_line_and_no_line_is_about_one_that_does_not_exist():
    named = {row[1].strip("`") for row in rows() if len(row) == 4}
    missing = sorted(extras() - named)
    assert extras() and not missing, f"say in docs/reference/support.md what was run of {missing}"
    assert named <= extras() | {"none"}


def test_every_line_says_what_was_done_and_when():
    assert len(rows()) > 25
    vague = [row[0] for row in rows() if not any(STATE.fullmatch(cell) for cell in row)]
    assert not vague, f"neither run (version, date) nor loads nor not run: {vague}"


def test_what_was_run_has_a_command_or_says_by_which_line():
    bare = [row[0] for row in rows() if "**run**" in " ".join(row) and not re.search(r"`|the same|above", row[-1])]
    assert not bare, f"run, but by which command? {bare}"


def test_what_people_ask_about_is_on_the_page():
    first = " ".join(row[0] for row in rows())
    torches = {minor for minor in ("2.11", "2.12", "2.13") if re.search(rf"torch [^|]*{re.escape(minor)}", first)}
    missing = [word for word in ASKED if word not in first]
    assert not missing and torches == {"2.11", "2.12", "2.13"}, missing
