"""Tests the line that installs packages, and what a component declares to need."""

import sys

import pytest

from nemo_vfm.core.errors import MissingPackage
from nemo_vfm.core.optional import GIVEN, declared_packages, install_line, needed_packages, needs_packages, require


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """An environment without tested versions, and a working directory elsewhere."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env").mkdir()
    return tmp_path / "env"


def test_one_line_installs_all_at_the_versions_of_the_environment(prefix):
    (prefix / "constraints.txt").touch()
    modules = ["tokenizers", "sentencepiece", "jsonschema", "gcsfs"]
    assert install_line(modules) == "pip install -c env/constraints.txt 'nemo_vfm[functions,text]' 'gcsfs'"


def test_an_environment_without_versions_takes_those_of_the_checkout(prefix):
    words = install_line(["wandb"]).split()
    assert words[:3] == ["pip", "install", "-c"] and words[3].endswith("/constraints.txt") and words[3][0] == "/"


def test_transformer_engine_comes_by_its_extra_and_is_built_against_the_torch_that_is_there():
    line = install_line(["transformer_engine.pytorch"])
    assert "--no-build-isolation" in line and line.endswith("'nemo_vfm[te]'")


def test_nemo_is_never_in_the_line_of_the_environment_one_works_in():
    line = install_line(["nemo.collections", "wandb"])
    assert "'nemo_vfm[wandb]'; nemo in a separate environment" in line
    assert "pip" not in install_line(["nemo"])


def test_what_is_not_there_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingPackage, match=r"^A check needs the package 'jsonschema'.* Install it: pip install"):
        require("jsonschema", purpose="A check")


def test_a_derived_class_needs_what_its_base_needs_and_its_own():
    @needs_packages("a")
    class Base:
        def __init__(self, *, kind: str = "x", more: str | None = None) -> None: ...

    @needs_packages("b", where={"kind": "x"})
    @needs_packages("c", where={"more": GIVEN})
    class Derived(Base): ...

    def modules(**given: object) -> list[str]:
        return [name for need in needed_packages(Derived, given) for name in need.modules]

    assert [need.modules for need in declared_packages(Base)] == [("a",)]
    assert modules() == ["a", "b"] and modules(kind="y") == ["a"] and modules(kind="y", more="z") == ["a", "c"]
    assert [str(need) for need in declared_packages(Derived)] == ["a", "c where more is given", "b where kind is x"]
