"""Tests that whatever a recipe may name only builds: nothing is opened, written, contacted or started."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.asking.journal import Journal, OpenJournal
from nemo_vfm.config import RecipeError, build, check, compose, hints, trust_list
from nemo_vfm.config.locate import DEFAULT_TRUST, NotLocated, locate
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.component import component, may_be_named, no_component
from nemo_vfm.models.scorer import Scorer
from nemo_vfm.serve.openai_api.http_server import Listen
from nemo_vfm.synth.checks.limited_child import run_python
from tests.support.constructor_trace import sinks
from tests.support.repository import ROOT, module_name, python_files, yaml_files

TRUST = trust_list(["nemo", "piped", "model_code"])
#: What audits call that a constructor must not do; "open" is judged by who asks.
FAULTS = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "subprocess.Popen", "os.system",
          "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.remove", "os.rename", "os.mkdir", "os.rmdir",
          "os.link", "os.symlink", "os.truncate", "os.chmod", "os.kill", "os.putenv", "os.listdir",
          "os.scandir", "shutil.rmtree", "shutil.move", "shutil.copyfile", "tempfile.mkstemp", "tempfile.mkdtemp",
          "open")  # fmt: skip


@cache
def ours() -> dict[str, Any]:
    """Every public class and function of ours that can be imported here, by dotted name."""
    found: dict[str, Any] = {}
    for path in python_files("nemo_vfm"):
        name = module_name(path)
        if name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:  # what only a GPU's machine has
            continue
        for key, value in vars(module).items():
            if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == name and key[:1] != "_":
                found[f"{name}.{key}"] = value
    return found


def marked(target: Any) -> bool:
    """Whether its definition says itself what may be done with it."""
    return any(vars(one).get("_recipes_may_name") is not None for one in getattr(target, "__mro__", (target,)))


@pytest.mark.slow  # 25 s: it imports everything
def test_a_constructor_of_ours_opens_nothing_or_its_class_says_so():
    classes = {name: one for name, one in ours().items() if inspect.isclass(one) and not hints.is_protocol(one)}
    assert len(classes) > 900
    wrong = {}
    for name, one in classes.items():
        found = sinks(one)
        if found and may_be_named(one) and not (marked(one) and found.keys() <= {"reads"}):
            wrong[name] = f"{found}; open it later, or mark the class with @no_component"
        if marked(one) and may_be_named(one) and not found:
            wrong[name] = "its mark says that it reads something, and it opens nothing"
    assert not wrong, wrong


@pytest.mark.slow
def test_no_function_of_ours_is_called_by_a_recipe_unless_it_only_builds():
    functions = {name: one for name, one in ours().items() if inspect.isfunction(one)}
    assert len(functions) > 1000
    named = {name for name, one in functions.items() if may_be_named(one)}
    others = {name for name in named if not name.startswith("nemo_vfm.models.convert.")}
    assert (
        others
        == {
            "nemo_vfm.parallel.engine.param_groups.grouped_optimizer",
            "nemo_vfm.serve.rewards.served_reward.served_reward",
            "nemo_vfm.serve.served_folder.served_folder",
        }
        and named > others
    ), named
    wrong = {name: str(found) for name in named if (found := sinks(functions[name])).keys() - {"reads"}}
    assert not wrong, wrong
    for name in functions.keys() - named:
        with pytest.raises(NotLocated):
            locate(name, DEFAULT_TRUST)


def test_the_trace_sees_what_a_call_does():
    assert {"writes", "starts"} <= sinks(run_python).keys()
    assert "writes" in sinks(OpenJournal)
    assert "connects" in sinks(Listen.socket)
    assert "writes" in sinks(write_json)
    assert sinks(Scorer).keys() == {"reads"}
    assert not sinks(Journal)


def test_a_mark_holds_for_what_it_marks_alone():
    def plain() -> None: ...

    class Plain: ...

    assert (may_be_named(plain), may_be_named(component(plain))) == (False, True)
    assert (may_be_named(Plain), may_be_named(no_component(type("Made", (Plain,), {})))) == (True, False)
    assert may_be_named(Plain)


class _Audit:
    """What the interpreter tells of; a hook stays for good, so it looks only while a block runs."""

    def __init__(self) -> None:
        self.seen: list[str] | None = None
        sys.addaudithook(self._hook)

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        self.seen = found = []
        try:
            yield found
        finally:
            self.seen = None

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.seen is not None and event in FAULTS and not _imports():
            self.seen.append(f"{event}: {arguments[:3]}")


def _imports() -> bool:
    """Whether a module is being looked for or run."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@cache
def audit() -> _Audit:
    return _Audit()


def complete(file: Path) -> tuple[Any, list[str]]:
    """A recipe or ingredient with paths that do not exist, and what is wrong with it besides."""
    composed, words = compose(file), []
    for problem in check(composed, TRUST):
        if problem.kind == "missing":
            texts = {"module": "lightning.pytorch.demos.boring_classes.BoringModel",
                     "data": "lightning.pytorch.demos.boring_classes.BoringDataModule",
                     "speech": "nemo_vfm.nemo.transcribe.NeMoSpeech speech.model=absent"}  # fmt: skip
            value = "[absent]" if "(a list, each" in problem.message else "absent"
            slot = problem.path.removesuffix("._target_").rpartition(".")[2]
            words += f"{problem.path}={texts.get(slot, value) if '_target_' in problem.path else value}".split(" ")
    composed = compose(file, words)
    return composed, [problem.message for problem in check(composed, TRUST)]


@pytest.mark.slow
def test_building_a_recipe_touches_no_file_no_host_and_no_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    built, faults = 0, {}
    for file in (*yaml_files("recipes"), *yaml_files("conf")):
        composed, problems = complete(file)
        if problems and not file.is_relative_to(ROOT / "recipes"):
            continue  # an ingredient that refers to its recipe
        assert not problems, (file, problems)
        with audit().watching() as found:
            try:
                build(composed, TRUST)
            except RecipeError as error:
                faults[str(file)] = [str(error)]
        built += 1
        if found:
            faults[str(file)] = found[:3]
    assert not faults, faults
    assert built > 50
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("act", [lambda folder: (folder / "x").write_text(""), lambda folder: (folder / "y").mkdir(),
                                 lambda folder: list(folder.iterdir())])  # fmt: skip
def test_the_audit_sees_what_is_touched(act, tmp_path):
    with audit().watching() as found:
        act(tmp_path)
    assert found
