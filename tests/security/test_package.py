"""Tests that the package does nothing unasked: no network, no telemetry, nothing written (attack 52).

tests/house/test_words.py searches its code for forbidden words.
"""

import json
import re
import socket
import subprocess
import sys

import pytest

from tests.support import loopback
from tests.support.repository import CODE, ROOT, python_files, yaml_files

pytestmark = pytest.mark.slow  # it imports every module in a process that reports each step

#: Every module imported, then the verbs that only look; each event that Python's audit reports on the way.
WATCHED = r"""
import io, json, os, pkgutil, re, sys, contextlib
events, stage = [], "start"
def hook(event, arguments):
    if event.startswith("socket.") and event not in ("socket.__new__", "socket.gethostname", "socket.bind"):
        events.append([stage, event, repr(arguments[1:])[:100] if event == "socket.connect" else repr(arguments)[:100]])
    elif event in ("urllib.Request", "http.client.connect", "smtplib.connect", "os.system", "webbrowser.open"):
        events.append([stage, event, repr(arguments)[:100]])
    elif event == "open" and stage not in ("start", "import") and isinstance(arguments[0], (str, bytes)):
        writes = (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        name = os.fsdecode(arguments[0])
        tried = re.fullmatch(r"/tmp/[a-z0-9_]{8}", name)  # Python asks once whether it may write there
        if writes and name != os.devnull and "__pycache__" not in name and not tried:
            events.append([stage, "write", name])
sys.addaudithook(hook)
import nemo_vfm
from nemo_vfm.cli.main import main
statuses = {}
def run(*words):
    global stage
    stage = " ".join(words)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            statuses[stage] = main(list(words))
        except SystemExit as end:
            statuses[stage] = end.code
recipes, verbs = json.loads(sys.argv[1]), sorted(__import__("nemo_vfm.cli.main", fromlist=["PROGRAM"]).PROGRAM.verbs())
run("--help")
for verb in verbs:
    run(verb, "--help")
run("list")
for recipe in recipes:
    run("check", recipe)
    run("show", recipe)
stage, missing = "import", []
names = [module.name for module in pkgutil.walk_packages(nemo_vfm.__path__, "nemo_vfm.")]
asked = [name for name in names if name.startswith("nemo_vfm.parallel.megatron.")]  # Megatron-Core imports wandb
def load(chosen):
    for name in chosen:
        if not name.endswith("__main__"):
            try:
                __import__(name)
            except ImportError as error:
                missing.append(f"{name}: {error}")
load(name for name in names if name not in asked)
modules = sorted(sys.modules)
load(asked)
print(json.dumps({"events": events, "statuses": statuses, "modules": modules, "missing": missing}))
"""
#: What sends reports by itself, and the switch that must stand in each file of ours that imports it.
SWITCHES = {"mlflow": "MLFLOW_DISABLE_TELEMETRY", "ray": "RAY_USAGE_STATS_ENABLED",
            "huggingface_hub": "HF_HUB_DISABLE_TELEMETRY", "wandb": "WANDB_ERROR_REPORTING"}  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What one process did that imported all of us and ran every verb that only looks."""
    recipes = [*{path.parent: str(path) for path in yaml_files("recipes")}.values()]  # the last of each folder
    done = subprocess.run([sys.executable, "-c", WATCHED, json.dumps(recipes)], capture_output=True, text=True,
                          cwd=tmp_path_factory.mktemp("empty"), env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
                          timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_is_reached_or_written_by_import_help_list_check_and_show(seen):
    assert not seen["events"], seen["events"][:10]


def test_the_verbs_really_ran(seen):
    wrong = {words: status for words, status in seen["statuses"].items() if status != 0}
    assert not wrong and sum(words.startswith("check ") for words in seen["statuses"]) > 5


def test_every_module_is_imported_but_those_of_absent_packages(seen):
    told = [line.partition(": ")[2] for line in seen["missing"] if not re.search(r"needs the package '\w+', ", line)]
    ours = [text for text in told if "nemo_vfm" in text]
    assert not ours, ours
    assert sum(name.startswith("nemo_vfm.") for name in seen["modules"]) > 100


def test_nothing_that_reports_home_is_loaded_unasked(seen):
    reporters = {"sentry_sdk", "posthog", "analytics", "segment", "mixpanel", "mlflow", "wandb", "ray"}
    found = sorted(reporters & {name.partition(".")[0] for name in seen["modules"]})
    assert not found, found


def test_each_package_that_reports_home_is_told_not_to():
    for path in python_files(*CODE):
        text = path.read_text()
        for package, switch in SWITCHES.items():
            if re.search(rf'^\s*(import|from) {package}\b|require\(\s*"{package}"', text, re.MULTILINE):
                assert re.search(switch, text), f"{path.relative_to(ROOT)} uses {package} without {switch}"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1", "", None, "a.localhost"]
)
def test_the_guard_lets_this_machine_through(host):
    assert loopback.is_local(host)


@pytest.mark.parametrize("host", ["8.8.8.8", "10.0.0.1", "169.254.169.254", "example.org", "::ffff:8.8.8.8",
                                  "localhost.x.org"])  # fmt: skip
def test_the_guard_stops_what_lies_beyond(host):
    assert not loopback.is_local(host)
    with pytest.raises(loopback.BeyondThisMachine, match="tests reach this machine only"):
        socket.create_connection((host, 9), timeout=1)
    assert loopback.BEYOND
    loopback.BEYOND.clear()
