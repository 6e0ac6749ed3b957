"""Tests that the worst recipes cost under a second and under 200 MB above a harmless check (attack 4).

The base, a process that has checked a harmless recipe, is about 160 MB here (Linux, x86-64).
"""

import json
import subprocess
import sys

import pytest

from nemo_vfm.config import check
from tests.security.test_hostile_recipes import HOSTILE
from tests.support.recipe_folder import PARTS, ROOT, TRUST, WIDE

pytestmark = pytest.mark.slow  # files of 100 MB

DEEP = "{a: " * 45 + "<x>" + "}" * 45
MAX_UNITS, MAX_MB = 75, 200  # none took more than 35 units
#: Name -> (recipe, changes); files that several need are written beside them.
WORST = {
    "harmless": (WIDE, []),
    **{name: (text, []) for name, text in HOSTILE.items()},
    "100 MB": (lambda: "a: " + "x" * 100_000_000, []),  # not before it is asked for: all processes import this file
    "100 MB of lines": (lambda: "a: 1\n" * 20_000_000, []),
    "10,000 levels": ("a: " + "[" * 10_000 + "]" * 10_000, []),
    "10,000 levels of mappings": ("a: " + "{a: " * 10_000 + "1" + "}" * 10_000, []),
    "as many values as there may be": (WIDE + "names: [" + "a, " * 19_000 + "]", []),
    "as many wrong values": (WIDE + "weights: {" + ", ".join(f"k{n}: x" for n in range(19_000)) + "}", []),
    "as many unknown keys": (WIDE + "\n".join(f"key{n}: 1" for n in range(19_000)), []),
    "as many wrong components": (WIDE + "chain: [" + "{_target_: a.b}, " * 9_000 + "]", []),
    "as many classes to look for": (WIDE + "chain: [" + "{_target_: nemo_vfm.nowhere.Train}, " * 5_000 + "]", []),
    "as many copies": (WIDE + "name: x\nweights: {a: &a {b: 1}}\nchain: [" + "'${weights}', " * 15_000 + "]", []),
    "as many secrets": (WIDE + "names: [" + "'${env:HOME}', " * 15_000 + "]", []),
    "a megabyte of text": (WIDE + "count: " + "x" * 1_000_000, []),
    "a megabyte of a choice": (WIDE + "stage: {_target_: '@.Scale', by: 1, mode: " + "x" * 999_000 + "}", []),
    "a megabyte of key": (WIDE + "? " + "k" * 999_000 + "\n: 1", []),
    "a megabyte of name": (WIDE + "stage: {_target_: " + "a." * 499_000 + "b}", []),
    "a megabyte of braces": (WIDE + "name: '" + "${" * 499_000 + "'", []),
    "a megabyte of interpolation": (WIDE + "name: '" + "${a}" * 249_000 + "'", []),
    "a megabyte of address": (WIDE + "name: ${" + "a." * 499_000 + "a}", []),
    "aliases that nest": ("\n".join(f"x{n}: &a{n} " + DEEP.replace("<x>", f"*a{n - 1}" if n else "1")
                                    for n in range(60)), []),
    "as many references to nothing": (WIDE + "weights:\n" + "".join(f"  k{n}: 1\n  r{n}: ${{weights.zz{n}}}\n"
                                                                    for n in range(9_000)), []),
    "interpolations that nest": ("\n".join(f"x{n}: " + DEEP.replace("<x>", f"'${{x{n + 1}}}'") for n in range(28))
                                 + "\nx28: 1", []),
    "ingredients that double": ("defaults: [{a: n0}]\n", []),
    "ingredients that are wide": ("defaults: [{w: x}]\n", []),
    "a slot that is the disk": ("defaults: [{/: x}]\n" + WIDE + "stages: {/: 3}", []),
    "a component that is the disk": (WIDE + "stages: {/: 3, '..': 3, /usr: x}", []),
    "a long change": (WIDE, ["name=" + "[" * 100_000]),
    "a long address": (WIDE, ["a." * 100_000 + "b=1"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """What each recipe cost, from one process."""
    folder = tmp_path_factory.mktemp("bounds")
    for name in ("a", "b", "w"):
        (folder / "conf" / name).mkdir(parents=True)
    for number in range(22):
        for name in ("a", "b"):
            text = f"defaults: [{{a: n{number + 1}}}, {{b: n{number + 1}}}]\nx: 1\n"
            (folder / f"conf/{name}/n{number}.yaml").write_text(text)
    (folder / "conf/w/x.yaml").write_text("defaults: [" + ", ".join(f"{{s{n}.a: n15}}" for n in range(4000)) + "]\n")
    lines = []
    for number, (text, changes) in enumerate(WORST.values()):
        (folder / f"r{number}.yaml").write_text((text() if callable(text) else text).replace("@", PARTS))
        lines.append(json.dumps({"file": f"r{number}.yaml", "changes": changes}))
    done = subprocess.run([sys.executable, "-m", "tests.support.bounded", str(folder)], input="\n".join(lines),
                          capture_output=True, text=True, timeout=300, cwd=ROOT)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(WORST, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", WORST)
def test_a_recipe_ends_in_a_sentence_within_bounds(costs, name):
    found, base = costs[name], costs["harmless"]
    assert "crash" not in found, found
    assert bool(found["said"]) == (name not in ("harmless", "as many values as there may be", "as many secrets"))
    assert len(found["said"]) < 60_000
    above_mb = found["peak_mb"] - base["peak_mb"]
    assert above_mb < MAX_MB, f"{above_mb:.0f} MB above a base of {base['peak_mb']:.0f} MB"
    # In units of a fixed piece of Python, about 0.02 s: a slow and busy machine needs three times as many seconds.
    units = found["seconds"] / found["yardstick_s"]
    assert units < MAX_UNITS, (
        f"{found['seconds']:.1f} s, {units:.1f} times the yardstick of {found['yardstick_s']:.2f} s"
    )


@pytest.mark.parametrize("slot", ["noted", "either"])
def test_too_many_problems_below_a_union_are_problems_still(kitchen, slot):
    text = (
        f"_target_: '@.Typed'\n{slot}: {{_target_: '@.Scale', by: 1, "
        + ", ".join(f"k{n}: 1" for n in range(2000))
        + "}"
    )
    assert len(check(kitchen.compose(text), TRUST)) == 1000
