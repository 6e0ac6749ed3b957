"""Tests that every argument of a component that names what it writes is typed so: a recipe may not write anywhere."""

import ast
import inspect
import typing
from functools import cache

from nemo_vfm.config import hints
from nemo_vfm.config.slot_fit import fits
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.storage.write_path import WriteMark
from nemo_vfm.core.types.component import may_be_named
from nemo_vfm.core.types.job import Job
from tests.house.test_components import constructor, public_classes
from tests.support.repository import module_name, python_files, tree
from tests.support.written_arguments import Package

#: Found by the search, and yet written nowhere that a recipe chooses.
HARMLESS = {
    "BatchAsker.folder": "built by `Synthesize` alone, below its run folder",
    "Journal.others": "opened by the function that opens its own file, but read only",
    "Sample.base": "a random pipeline is written there only where it lies in the run folder",
    "Train.base": "as Sample.base",
}


@cache
def package() -> Package:
    return Package({module_name(path): tree(path) for path in python_files("nemo_vfm")})


@cache
def slots() -> frozenset[type]:
    """Every class or protocol that a component's constructor asks for."""
    found: set[type] = {Job}
    for one in public_classes().values():
        for name, hint in typing.get_type_hints(constructor(one), include_extras=True).items():
            if name != "return":
                found.update(_asked(hint))
    return frozenset(found)


def _asked(hint: object) -> typing.Iterator[type]:
    inner = hints.bare_hint(hint)
    if hints.is_factory(inner):
        yield from _asked(hints.factory_parts(inner)[1])
        return
    for part in typing.get_args(inner):
        yield from _asked(part)
    home = typing.get_origin(inner) or inner
    if hints.is_component(home) and home.__module__.startswith("nemo_vfm."):
        yield home


def written() -> typing.Iterator[tuple[type, str]]:
    """(component, argument) of everything that is written; what fits no slot no recipe can make."""
    for (module, name), found in package().classes.items():
        component = public_classes().get(f"{module}.{name}")
        is_one = component is not None and found.writes and may_be_named(component)
        if not is_one or not any(fits(component, slot) for slot in slots()):
            continue
        yield from ((component, one) for one in found.parameters if one in found.writes)


def test_what_a_component_writes_is_a_write_path():
    found = list(written())
    wrong = []
    for component, argument in found:
        hint = typing.get_type_hints(constructor(component), include_extras=True)[argument]
        if not (hints.said(hint, WriteMark) or Address in (hint, *typing.get_args(hint))):
            wrong.append(f"{component.__qualname__}.{argument}")
    assert sorted(wrong) == sorted(HARMLESS), "annotate it as WritePath (nemo_vfm/core/storage/write_path.py)"
    known = {f"{component.__qualname__}.{argument}" for component, argument in found}
    assert known > {"Synthesize.journal", "VideoFolder.index", "StreamedTars.counts", "ShardCache.folder"}


PLANTED = """
class Direct:
    def __init__(self, path): self.path = path
    def run(self): self.path.write_text("x")

class Derived:
    def __init__(self, *, folder): self._folder = Path(folder)
    @property
    def file(self): return self._folder / "x"
    def run(self): helper(self.file)

class Kept:
    def __init__(self, place): self.holder = Direct(place)

class Heir(Direct):
    def also(self): self.path.mkdir()

def helper(where):
    there = where.with_suffix(".tmp")
    os.replace(there, where)

class Reads:
    def __init__(self, path): self.path = path
    def run(self, run):
        (run.folder / "x").write_bytes(self.path.read_bytes())
        return self.path.open("rb"), str(self.path).replace("a", "b")
"""


def test_the_search_sees_what_is_written_and_only_that():
    found = Package({"m": ast.parse(PLANTED)}).classes
    seen = {name: sorted(set(one.parameters) & one.writes) for (_, name), one in found.items()}
    assert seen == {"Direct": ["path"], "Derived": ["folder"], "Kept": ["place"], "Heir": ["path"], "Reads": []}


def test_the_classes_of_others_that_a_recipe_may_name_take_no_path():
    from nemo_vfm.config.locate import DEFAULT_TRUST, locate

    for name in (one for one in DEFAULT_TRUST if not one.endswith(".")):
        taken = inspect.signature(locate(name, DEFAULT_TRUST)).parameters
        assert not {one for one in taken if any(word in one for word in ("dir", "path", "file", "folder"))}, name
