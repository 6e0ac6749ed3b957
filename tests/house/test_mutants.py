"""Tests that planted faults change one place of the code, and that tests see one that matters."""

import ast
import shutil
from pathlib import Path

import pytest

from tests.support import mutants
from tests.support.repository import ROOT


def test_the_same_seed_chooses_the_same_faults_over_all_rooms():
    found = mutants.chosen(60, 3, [])
    assert found == mutants.chosen(60, 3, []) != mutants.chosen(60, 4, [])
    assert {"data", "train", "parallel", "launcher", "curate"} < {fault.room for fault in found}
    assert {fault.room for fault in mutants.chosen(5, 0, ["dedup"])} == {"dedup"}


def test_a_fault_changes_one_token_and_leaves_python(tmp_path: Path):
    for fault in mutants.chosen(40, 1, []):
        (tmp_path / fault.file).parent.mkdir(parents=True, exist_ok=True)
        before = (ROOT / fault.file).read_text()
        shutil.copyfile(ROOT / fault.file, tmp_path / fault.file)
        fault.plant(tmp_path)
        after = (tmp_path / fault.file).read_text()
        changed = [(a, b) for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
        assert len(changed) == 1 and fault.new in changed[0][1]
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))


def test_a_conftest_that_cannot_be_imported_is_a_fault_seen_and_a_wrong_command_line_is_none(tmp_path: Path):
    (tmp_path / "conftest.py").write_text("raise ValueError\n")
    (tmp_path / "test_it.py").touch()
    assert "conftest" in str(mutants._run([str(tmp_path / "test_it.py")], tmp_path, ""))
    (tmp_path / "conftest.py").unlink()
    with pytest.raises(AssertionError, match="arguments: --absent"):
        mutants._run(["--absent"], tmp_path, "")


@pytest.mark.soak  # it runs pytest on a copy of the code
def test_a_fault_that_matters_is_seen_and_one_that_does_not_survives(tmp_path: Path):
    for part in ("nemo_vfm", "tests", "conf", "recipes", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    file = "nemo_vfm/core/latent_rows.py"
    fault = next(one for one in mutants.faults_of(ROOT / file))
    assert "FAILED" in str(mutants.seen_by(fault, tmp_path, "not soak and not slow and not cluster"))
    harmless = mutants.Fault("nemo_vfm/dedup/keypoints.py", 1, 3, "Finds", "Looks for")
    assert mutants.seen_by(harmless, tmp_path, "not soak and not slow and not cluster") is None
