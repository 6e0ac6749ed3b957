"""Tests .ci/run on a small project whose tests fail once, fail always, or crash their process."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

MAKEFILE = """JOBS ?= 1
torch setup-dev:
test-all:
\t@{python} -m pytest -p xdist -p tests.support.flaky -p no:cacheprovider -q -n $(JOBS) --dist loadfile \\
\t  --max-worker-restart=0 $(PYTEST_ARGS)
"""
ONCE = "import os, pathlib\nmark = pathlib.Path({mark!r})\n"
FLAKY = ONCE + "def test_flaky():\n    first = not mark.exists()\n    mark.touch()\n    assert not first\n"
CRASH = ONCE + "def test_crash():\n    if not mark.exists():\n        mark.touch()\n        os._exit(1)\n"
SKIPS = "import pytest\n" + ONCE + (
    "def test_skips():\n    if mark.exists():\n        pytest.skip('not here')\n    mark.touch()\n    assert False\n"
)  # fmt: skip


@pytest.fixture
def ci(tmp_path):
    """A function that runs our .ci/run on files of tests and gives what it printed and its status."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable))
    (tmp_path / "bin").mkdir()
    for name in ("slurmctld", "munged", "shellcheck"):  # so that nothing is installed
        (tmp_path / "bin" / name).symlink_to("/bin/true")

    def run(**files: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "toy").mkdir(exist_ok=True)
        (tmp_path / "temporary").mkdir(exist_ok=True)
        (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = toy\n")
        for name, text in files.items():
            (tmp_path / "toy" / f"test_{name}.py").write_text(text.replace("{mark!r}", repr(str(tmp_path / name))))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "PYTEST"))}
        env |= {"PATH": f"{tmp_path / 'bin'}:{env['PATH']}", "TMPDIR": str(tmp_path / "temporary"),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # fmt: skip
        return subprocess.run(["bash", ".ci/run"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_what_passes_the_second_time_is_named_flaky_and_fails_nothing(ci, tmp_path):
    done = ci(flaky=FLAKY, good="def test_good():\n    pass\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _flaky(done) == {"toy/test_flaky.py::test_flaky"}
    assert not list((tmp_path / "temporary").glob("tmp.*")), "its notes are left behind"


def test_a_crash_that_does_not_come_again_is_named_flaky_and_the_tests_behind_it_run(ci):
    """Apart from a test that fails once: a crash ends the run."""
    done = ci(crash=CRASH + "def test_after():\n    assert True\n")
    assert done.returncode == 0 and _flaky(done) == {"toy/test_crash.py::test_crash"}, done.stdout + done.stderr
    assert "1 tests did not run; they run now." in done.stdout


def test_what_does_not_pass_the_second_time_fails_the_run(ci):
    done = ci(flaky=FLAKY, bad="def test_bad():\n    assert False\n", skips=SKIPS)
    assert done.returncode != 0 and _flaky(done) == {"toy/test_flaky.py::test_flaky"}, done.stdout


def test_a_test_that_skips_itself_the_second_time_fails_the_run(ci):
    done = ci(skips=SKIPS)
    assert done.returncode != 0 and not _flaky(done), done.stdout


def test_a_failure_among_tests_that_a_crash_left_behind_fails_the_run(ci):
    done = ci(crash=CRASH + "def test_after():\n    assert False\n")
    assert done.returncode != 0 and _flaky(done) == {"toy/test_crash.py::test_crash"}, done.stdout


def test_a_file_that_cannot_be_imported_fails_the_run(ci):
    assert ci(broken="import no_such_module\n").returncode != 0


def _flaky(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"^flaky: (.*)$", done.stdout, re.M))
