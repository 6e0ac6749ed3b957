"""Tests the import rules: the layers, the packages that one room alone may use, and the cost of an import."""

import ast
import functools
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

from tests.support.repository import CODE, ROOT, dotted, imports, module_name, nodes, python_files, tree, where

#: External package -> the only places that may import it, at the top or late.
DOORS = {
    "megatron": ("nemo_vfm/parallel/megatron/",),
    "transformer_engine": ("nemo_vfm/parallel/megatron/", "nemo_vfm/parallel/fp8/te.py"),
    # NeMo is given what OmegaConf reads; that room sees nothing of our recipes.
    "omegaconf": ("nemo_vfm/config/", "nemo_vfm/runtime/python_api.py", "nemo_vfm/cli/", "nemo_vfm/nemo/", "launcher/"),
    "yaml": ("nemo_vfm/config/", "nemo_vfm/cli/", "nemo_vfm/nemo/", "launcher/"),
    "nemo_vfm.config": ("nemo_vfm/config/", "nemo_vfm/cli/", "nemo_vfm/explain/", "nemo_vfm/runtime/", "launcher/"),
    "launcher": ("launcher/",),
    "torch.cuda": ("nemo_vfm/core/device.py", "nemo_vfm/parallel/"),
}
#: Every place that imports by a name it holds as text, and where the name comes from. One reads names that users write.
IMPORTS_BY_NAME = {
    "launcher/plan/isolated.py": "nemo_vfm itself, in a process of its own",
    "nemo_vfm/config/locate.py": "a recipe, after the trust list was asked",
    "nemo_vfm/core/optional.py": "our own code",
    "nemo_vfm/core/program.py": "the files of a program's own folder",
    "nemo_vfm/report/page.py": "the files of its own folder",
}
WAYS_TO_IMPORT = ("importlib.import_module", "importlib.reload", "importlib.util.module_from_spec", "__import__",
                  "pkgutil.resolve_name", "runpy.run_module", "runpy.run_path")  # fmt: skip
#: Rooms that must load where only torch is installed, without what may be absent beside them.
TORCH_ALONE = ("nemo_vfm/core", "nemo_vfm/sparse", "nemo_vfm/parallel", "nemo_vfm/models", "nemo_vfm/diffusion")


@functools.cache  # seven tests ask for those of every file
def mentions(path: Path) -> list[tuple[str, ast.AST]]:
    """(dotted name, node) of every import and of every attribute read, such as `torch.cuda.Event`."""
    attributes = [(name, node) for node in nodes(path) if "." in (name := dotted(node))]
    return [*imports(path), *attributes]


@pytest.mark.parametrize("package", DOORS)
def test_only_its_own_room_knows(package):
    found = [
        f"{where(path, node)} {name}"
        for path in python_files(*CODE)
        if not str(path.relative_to(ROOT)).startswith(DOORS[package])
        for name, node in mentions(path)
        if f"{name}.".startswith(f"{package}.")
    ]
    assert not found, f"{package} belongs to {DOORS[package]} alone: {found}"


def test_ray_is_imported_in_one_file_a_room():
    files: dict[str, set[str]] = {}
    for path in python_files("nemo_vfm"):
        if any(name.split(".")[0] == "ray" for name, _ in imports(path)):
            files.setdefault(path.relative_to(ROOT).parts[1], set()).add(where(path))
    assert all(len(group) == 1 for group in files.values()), files


def calls(path: Path) -> list[tuple[str, ast.AST]]:
    """(dotted name, node) of every call."""
    return [(dotted(node.func), node) for node in nodes(path) if isinstance(node, ast.Call)]


def test_only_named_places_import_by_name_and_one_of_them_names_from_outside():
    found = [
        f"{where(path, node)} {name}"
        for path in python_files(*CODE)
        if str(path.relative_to(ROOT)) not in IMPORTS_BY_NAME
        for name, node in calls(path)
        if name in WAYS_TO_IMPORT
    ]
    assert not found, f"only {list(IMPORTS_BY_NAME)} may: {found}"


def test_one_file_calls_import_module():
    found = {
        str(path.relative_to(ROOT))
        for path in python_files(*CODE)
        for name, _ in mentions(path)
        if name == "importlib.import_module"
    }
    assert found == {"nemo_vfm/config/locate.py"}


def test_the_layers_hold():
    command = Path(sys.executable).with_name("lint-imports")
    if not command.exists():
        pytest.skip("import-linter is not installed (it comes with the extra dev)")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* kept, 0 broken", done.stdout), done.stdout


def run_python(code: str) -> str:
    """What a fresh interpreter prints after running the code in the repository."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_no_heavy_module():
    heavy = run_python(
        "import sys, nemo_vfm; print([m for m in ('torch', 'numpy', 'omegaconf', 'lightning') if m in sys.modules])"
    )
    assert heavy.strip() == "[]"


def requirements_of(distribution: str) -> set[str]:
    """Distributions that this one needs, and that those need, extras left out."""
    found: set[str] = set()
    wanted = [distribution]
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        wanted += [re.match(r"[\w.-]+", line)[0] for line in lines if "extra ==" not in line]
    return found


def modules_of(distributions: set[str]) -> set[str]:
    """Top-level import names that these distributions provide."""
    normal = {re.sub(r"[-_.]+", "-", name).lower() for name in distributions}
    provided = packages_distributions().items()
    return {top for top, names in provided if {re.sub(r"[-_.]+", "-", name).lower() for name in names} & normal}


ALONE = """
import importlib, json, sys
allowed, modules = json.loads(sys.argv[1])
allowed = set(allowed) | set(sys.stdlib_module_names)
class Closed:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] not in allowed:
            raise ModuleNotFoundError(f'{name} is closed for this test', name=name)
sys.meta_path.insert(0, Closed())
import warnings; warnings.simplefilter('ignore')
failed = {}
for module in modules:
    try:
        importlib.import_module(module)
    except Exception as error:
        failed[module] = str(error)
print(json.dumps(failed))
"""


def test_core_sparse_parallel_models_and_diffusion_import_with_torch_alone():
    allowed = sorted(modules_of(requirements_of("torch")) | {"nemo_vfm", "torch", "torchgen", "functorch"})
    # Imported late, where there is Megatron-Core, Triton or Transformer Engine.
    with_more = {"megatron", "triton_kernels.py", "triton_casts.py", "te.py"}
    files = [path for path in python_files(*TORCH_ALONE) if not with_more & set(path.relative_to(ROOT).parts)]
    modules = [module_name(path) for path in files]
    assert len(modules) > 10
    command = [sys.executable, "-c", ALONE, json.dumps([allowed, modules])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "these need more than torch to be imported:\n" + "\n".join(
        f"  {name}: {error}" for name, error in failed.items()
    )


def test_the_search_for_doors_sees_a_late_import():
    late = ast.parse("def f():\n    from torch import cuda\n    import megatron.core\n    torch.cuda.synchronize()")
    names = {dotted(node) for node in ast.walk(late)} | {
        f"{node.module}.{alias.name}"
        for node in ast.walk(late)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {"torch.cuda", "torch.cuda.synchronize"} <= names


def declared() -> set[str]:
    """Distributions that setup.py names for running, or for an extra other than dev."""
    lists: dict[str, list[str]] = {}
    for node in tree(ROOT / "setup.py").body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            strings = [
                n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            lists[node.targets[0].id] = strings
    lines = [*lists["RUNTIME"], *lists["EXTRAS"]]
    return {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines}


def test_everything_the_package_imports_is_declared_in_setup():
    ours = {"nemo_vfm", "launcher", "__future__", "triton"}  # torch for CUDA brings triton
    provided = packages_distributions()
    undeclared = []
    for path in python_files(*CODE):
        for name, node in imports(path):
            top = name.split(".")[0]
            # An extra that is not installed here provides nothing to look up: then its own name has to do.
            names = {d.lower().replace("_", "-") for d in provided.get(top, [top])}
            if top not in ours | set(sys.stdlib_module_names) and not names & declared():
                undeclared.append(f"{where(path, node)} {top} (from {', '.join(sorted(names))})")
    assert not undeclared, f"name them in setup.py: {undeclared}"
