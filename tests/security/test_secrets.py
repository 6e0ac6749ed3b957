"""Tests that no byte of a secret that careless components leak is in a run's files or output.

Each way of leaking runs in a fork of one process, since importing everything again would take minutes.
"""

import base64
import json
import os
import re
import sys

import pytest

from nemo_vfm.core import secret
from nemo_vfm.core.optional import available
from tests.support import preloaded
from tests.support.repository import ROOT

#: What nobody may see, whatever stands around it; quoting leaves letters and digits alone.
CORES = ("7f3dcanary9", "4b8ecanary2", "5a6fcanary3", "6c2bcanary4")
ENVIRONMENT = {
    "LEAKY_VALUE": 'kx"7f3dcanary9\\a1 &<+é',
    "LEAKY_LINES_KEY": "-----BEGIN-----\nMIIE4b8ecanary2=\n-----END-----\n",
    "HF_TOKEN": "hf_5a6fcanary3/Zq",
    "AWS_SECRET_ACCESS_KEY": "6c2bcanary4+kT/q",
}
LEAK = "_target_: tests.support.leaky.Leak\nrun_dir: out\nsecret: ${env:LEAKY_VALUE}\n"
TYPED = f"# As hf_5a6fcanary3/Zq.\n{LEAK}how: log\n".replace("${env:LEAKY_VALUE}", "hf_5a6fcanary3/Zq")
HOLDER = "holder: {_target_: tests.support.leaky.Holder, secret: '${env:LEAKY_VALUE}'}\n"
TRAIN = """
_target_: nemo_vfm.train.job.Train
run_dir: out
model: {_target_: tests.support.toy.ToyModel}
data: {_target_: tests.support.toy.ToyData}
task: {_target_: tests.support.toy.ToyTask}
optimizer: {_target_: torch.optim.AdamW, lr: 0.05}
loop:
  duration: 3 steps
  checkpoint: {_target_: nemo_vfm.train.callbacks.checkpointing.SaveCheckpoints, every_steps: 4}
callbacks: {leak: {_target_: tests.support.leaky.LeakyCallback, secret: '${env:LEAKY_VALUE}'}}
loggers:
"""
NAMED = ", name: '${env:LEAKY_VALUE}', tags: "


def train(name: str, more: str = "") -> str:
    return f"{TRAIN}  x: {{_target_: nemo_vfm.train.loggers.{name}{more}}}\n"


#: Way of leaking -> (verb, recipe).
WAYS = {
    **{how: ("run", f"{LEAK}{HOLDER}how: {how}\n") for how in (
        "log", "log_traceback", "other_logger", "warning", "prints", "bar", "raises", "raises_ours", "cause", "thread",
        "shows", "environment", "encoded", "outcome",
    )},
    "of several lines": ("run", f"{LEAK}how: raises\n".replace("LEAKY_VALUE", "LEAKY_LINES_KEY")),
    "lines in a log": ("run", f"{LEAK}how: log\n".replace("LEAKY_VALUE", "LEAKY_LINES_KEY")),
    "constructor": ("run", f"{LEAK}how: log\n{HOLDER}".replace("}'}", "}', refuse: true}")),
    "checked": ("check", f"{LEAK}how: log\n{HOLDER}".replace("}'}", "}', refuse: true}")),
    "of another kind": ("check", f"{LEAK}how: log\ncount: ${{env:LEAKY_VALUE}}\n"),
    "shown": ("show", f"{LEAK}how: log\nmore: 'x ${{env:LEAKY_VALUE}}'\n"),
    "written into a recipe": ("run", TYPED),
    "written into a recipe and shown": ("show", TYPED),
    "TensorBoard": ("run", train("TensorBoard")),
    "CSV": ("run", train("Csv")),
    "Weights & Biases": ("run", train("WeightsAndBiases", f"{NAMED}['${{env:LEAKY_VALUE}}']")),
    "MLflow": ("run", train("MLflow", f"{NAMED}{{a: '${{env:LEAKY_VALUE}}'}}")),
    "a key for a logger": ("check", train("MLflow", ", name: https://u:" + "4b8ecanary2@x.org")),
}  # fmt: skip
NEEDS = {"Weights & Biases": "wandb", "MLflow": "mlflow"}
SCRIPT = """
import json, os, sys
import lightning.pytorch, rich.logging, rich.progress
import nemo_vfm.runtime.run_folder, nemo_vfm.cli.verbs.run, nemo_vfm.config, nemo_vfm.workflow
import nemo_vfm.train.job, nemo_vfm.report.page, nemo_vfm.data.loader.lightning_data
from nemo_vfm.cli.main import main
for number, verb in enumerate(json.loads(sys.argv[1])):
    if os.fork() == 0:
        os.chdir(str(number))
        for fd, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        status = main([verb, "recipe.yaml", "--trust", "tests.support"])
        open("status", "w").write(str(status))
        sys.stdout.flush()
        wandb = "wandb" in sys.modules  # it has something to say when the process ends; to end torch takes seconds
        sys.exit(0) if wandb else os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="session")
def kitchens(tmp_path_factory):
    """One folder a way, with what it said and left."""
    root = tmp_path_factory.mktemp("leaks")
    ways = {name: way for name, way in WAYS.items() if available(NEEDS.get(name, "json"))}
    for number, (_, recipe) in enumerate(ways.values()):
        (root / str(number)).mkdir()
        (root / str(number) / "recipe.yaml").write_text(recipe)
    words = json.dumps([verb for verb, _ in ways.values()])
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = preloaded.run([sys.executable, "-c", SCRIPT, words], cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    for folder in root.iterdir():
        (folder / "recipe.yaml").unlink()
    return {name: root / str(number) for number, name in enumerate(ways)}


def traces(data: bytes) -> list[str]:
    """The secrets that bytes hold, as they are, cut by line breaks, or in base64."""
    joined = re.sub(rb"\s+", b"", data)
    forms = {core: [core.encode(), *(base64.b64encode(b"x" * n + core.encode())[4:-4] for n in range(3))]
             for core in CORES}  # fmt: skip
    return [core for core, spelled in forms.items() if any(form in data or form in joined for form in spelled)]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_no_byte_of_a_secret_is_left_or_said(kitchens, way):
    if way not in kitchens:
        pytest.skip(f"{NEEDS[way]} is not installed")
    files = [path for path in kitchens[way].rglob("*") if path.is_file()]
    assert {"stdout", "stderr", "status"} <= {path.name for path in files}
    found = {str(path.relative_to(kitchens[way])): seen for path in files if (seen := traces(path.read_bytes()))}
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "file"),
    [
        ("log", "stderr"),
        ("log_traceback", "stderr"),
        ("other_logger", "stderr"),
        ("warning", "stderr"),
        ("prints", "stdout"),
        ("bar", "stderr"),
        ("raises", "out/traceback.txt"),
        ("raises", "out/status.json"),
        ("cause", "out/traceback.txt"),
        ("thread", "stderr"),
        ("shows", "stderr"),
        ("environment", "out/traceback.txt"),
        ("encoded", "stderr"),
        ("outcome", "out/status.json"),
        ("outcome", "out/done.json"),
        ("outcome", "stdout"),
        ("constructor", "stderr"),
        ("written into a recipe", "out/recipe.yaml"),
        ("written into a recipe", "out/manifest.json"),
        ("written into a recipe and shown", "stdout"),
        ("TensorBoard", "out/metrics.jsonl"),
        ("a key for a logger", "stdout"),
    ],
)
def test_what_was_said_is_there_with_a_mask_in_its_place(kitchens, way, file):
    assert "***" in (kitchens[way] / file).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("way", "status"), [("log", 0), ("raises", 1), ("raises_ours", 2), ("constructor", 2)])
def test_the_ways_end_as_they_should(kitchens, way, status):
    assert (kitchens[way] / "status").read_text() == str(status)


@pytest.mark.parametrize("value", ["a1b2", "true", "Offline", "8080", "1234567", "/tmp", "/usr/lib/x/y", "   ab  "])
def test_short_everyday_and_plain_values_stay_readable(monkeypatch, value):
    monkeypatch.setenv("SOME_TOKEN", value)
    assert secret.conceal(f"it is {value}, see") == f"it is {value}, see"


@pytest.mark.parametrize("value", ["hunter22", "/x9Q/not/a/folder", "123456789012345", "pass word"])
def test_other_values_are_hidden(monkeypatch, value):
    monkeypatch.setenv("SOME_TOKEN", value)
    assert secret.conceal(f"it is {value}, see") == "it is ***, see"


@pytest.mark.parametrize("name", (
    "API_KEY", "WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "PASSPHRASE", "my_secret_1", "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN", "GITHUB_PAT", "AZURE_CREDENTIAL",
))  # fmt: skip
def test_a_variable_is_secret_by_its_name(monkeypatch, name):
    monkeypatch.setenv(name, "hunter22")
    assert "hunter22" not in secret.conceal("hunter22") and secret.is_key("xhunter22x")


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY", "AWS_REGION", "BYPASS", "SSH_AUTH_SOCK"]
)
def test_another_variable_is_not(monkeypatch, name):
    monkeypatch.setenv(name, "hunter22")
    assert secret.conceal("hunter22") == "hunter22"


def test_a_secret_inside_another_leaves_no_rest(monkeypatch):
    monkeypatch.setenv("A_KEY", "hunter22")
    monkeypatch.setenv("B_KEY", "hunter22-and-more")
    assert secret.conceal("hunter22-and-more") == "***"


def test_what_is_typed_behind_the_name_of_a_key_is_not_repeated(kitchen, capsys):
    kitchen.write("r.yaml", "_target_: @.Wide\n")
    assert kitchen.main("check", "r.yaml", "api_key=9d1fcanary5", "text_key=caption9") == 2
    said = capsys.readouterr().out
    assert "9d1fcanary5" not in said and "api_key=***" in said and "text_key=caption9" in said


def test_what_is_written_behind_the_name_of_a_key_is_not_repeated_either(kitchen, capsys):
    kitchen.write("r.yaml", "{_target_: '@.Wide', wandb_api_key: 9e2fcanary6, text_key: caption9}\n")
    assert kitchen.main("check", "r.yaml") == 2
    said = capsys.readouterr().out
    assert "9e2fcanary6" not in said and "wandb_api_key: ***" in said and "caption9" in said
