"""Tests loggers with the real packages: what they keep, what they never send, and that none can end a training."""

import inspect
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from nemo_vfm.config import compose, read_values
from nemo_vfm.core.errors import MissingPackage, UserError
from nemo_vfm.core.optional import available
from nemo_vfm.core.types.job import Run
from nemo_vfm.train.loggers import Csv, MLflow, TensorBoard, WeightsAndBiases, guard, identity
from nemo_vfm.train.loggers.flat_settings import flatten
from nemo_vfm.train.state.slots import LoggerSource
from nemo_vfm.train.state.train_state import TrainState
from tests.support import preloaded
from tests.support.repository import ROOT, yaml_files
from tests.train.test_job import lines, train

RECIPE = {"model": {"depth": 7, "names": ["a", "b"]}, "rate": 1.0e-3, "key": "${env:A_KEY}"}
#: One process trains, a second goes on; every address that either asks for goes into a file, to the very end. Both are
#: forks of one that has imported what takes long.
SCRIPT = f"""
import os, sys
def heard(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        with open("addresses", "a") as file:
            file.write(f"{{event}} {{arguments[1:] if event != 'socket.getaddrinfo' else arguments}}\\n")
sys.addaudithook(heard)
from pathlib import Path
import lightning.pytorch.loggers
from PIL import Image
from nemo_vfm.core.optional import available
from nemo_vfm.core.types.job import Run
from nemo_vfm.train.loggers import Csv, MLflow, TensorBoard, WeightsAndBiases
from tests.train.test_job import train
sources = {{"tensorboard": TensorBoard(), "csv": Csv()}}
if available("wandb"):
    sources["wandb"] = WeightsAndBiases(tags=["x"], group="ablations-7", job_type="pretrain-7")
if available("mlflow"):
    sources["mlflow"] = MLflow()
class Draw:
    def on_step(self, fit):
        if fit.step % 5 == 0:
            (fit.run.folder / "samples").mkdir(exist_ok=True)
            Image.new("RGB", (8, 4), "red").save(fit.run.folder / "samples" / f"step-{{fit.step:08d}}.png")
            (fit.run.folder / "samples" / f"step-{{fit.step:08d}}.mp4").write_bytes(b"a video")
for duration in ("6 steps", "10 steps"):
    if os.fork() == 0:
        train(duration, loggers=sources, callbacks={{"draw": Draw()}}).run(Run(Path("run"), settings={RECIPE!r}))
        sys.exit(0)
    assert os.wait()[1] == 0
"""


@pytest.fixture(scope="module")
def offline(tmp_path_factory) -> Path:
    """A folder in which a run trained six steps and, in another process, four more."""
    root = tmp_path_factory.mktemp("offline")
    (root / "home").mkdir()
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    kept = {name: value for name, value in os.environ.items() if name.upper() not in proxies}
    environment = {**kept, "HOME": str(root / "home"), "PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(root / "mpl"),
                   "WANDB_MODE": "online", "WANDB_API_KEY": "0f" * 20}  # fmt: skip
    done = preloaded.run([sys.executable, "-c", SCRIPT], cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    return root


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not available(package), reason=f"{package} is not installed")


@pytest.mark.slow  # all trackers twice, each in a process
def test_no_address_is_asked_for_to_the_end_of_the_process(offline: Path) -> None:
    asked = (offline / "addresses").read_text().splitlines() if (offline / "addresses").is_file() else []
    # A package may talk to a helper of its own on this machine, through a file.
    outside = [line for line in asked if not line.startswith("socket.connect ('/")]
    assert not outside


@pytest.mark.slow  # all trackers twice, each in a process
def test_nothing_is_written_at_home(offline: Path) -> None:
    assert [str(path) for path in (offline / "home").rglob("*") if path.is_file()] == []
    assert sorted(path.name for path in offline.iterdir() if path.name != "mpl") == (
        ["addresses", "home", "run"] if available("wandb") else ["home", "run"]
    )


@pytest.mark.slow  # all trackers twice, each in a process
def test_metrics_are_whole_beside_loggers(offline: Path) -> None:
    assert [line["step"] for line in lines(offline / "run")] == list(range(1, 11))


@pytest.mark.slow  # all trackers twice, each in a process
def test_tensorboard_has_the_settings_and_the_numbers(offline: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps, pictures = [], []
    for file in sorted((offline / "run/tensorboard").glob("events.*")):
        events = EventAccumulator(str(file))
        events.Reload()
        steps += [event.step for event in events.Scalars("loss")]
        pictures += [(event.step, event.width, event.height) for event in events.Images("preview")]
    assert pictures == [(5, 8, 4), (10, 8, 4)]
    assert steps == list(range(1, 11))
    settings = yaml.safe_load((offline / "run/tensorboard/hparams.yaml").read_text())
    assert settings["model.depth"] == 7 and settings["key"] == "${env:A_KEY}"


@pytest.mark.slow  # all trackers twice, each in a process
def test_each_part_of_a_run_has_a_table(offline: Path) -> None:
    tables = [file.read_text().splitlines() for file in sorted((offline / "run/csv").glob("*/metrics.csv"))]
    assert [len(table) for table in tables] == [1 + 6, 1 + 4] and "loss" in tables[0][0]


@needs("wandb")
@pytest.mark.slow  # all trackers twice, each in a process
def test_wandb_goes_on_with_the_same_number_and_keeps_the_settings(offline: Path) -> None:
    (number,) = json.loads((offline / "run/wandb/id.json").read_text()).values()
    parts = sorted((offline / "run/wandb").glob("offline-run-*"))
    assert len(parts) == 2 and all(part.name.endswith(f"-{number}") for part in parts)
    first, second = ((part / f"run-{number}.wandb").read_bytes() for part in parts)
    assert b"model.depth" in first and b"grad_norm" in first and b"grad_norm" in second
    assert [len(list(part.glob("files/media/images/preview_*.png"))) for part in parts] == [1, 1]
    videos = [[file.read_bytes() for file in part.glob("files/media/videos/preview_video_*.mp4")] for part in parts]
    assert videos == [[b"a video"], [b"a video"]] and b"ablations-7" in first and b"pretrain-7" in second
    everything = b"".join(path.read_bytes() for path in (offline / "run").rglob("*") if path.is_file())
    assert b"0f" * 20 not in everything, "a key of the environment is not kept, although nothing needs it"


@needs("mlflow")
@pytest.mark.slow  # all trackers twice, each in a process
def test_mlflow_goes_on_with_the_same_run_in_its_database(offline: Path) -> None:
    (number,) = json.loads((offline / "run/mlflow/id.json").read_text()).values()
    with sqlite3.connect(offline / "run/mlflow/mlflow.db") as database:
        assert database.execute("select run_uuid, status from runs").fetchall() == [(number, "FINISHED")]
        found = database.execute("select step from metrics where key = 'loss' order by step").fetchall()
        assert [step for (step,) in found] == list(range(1, 11))
        previews = {path.name for path in (offline / "run/mlflow/artifacts").rglob("step-*")}
        assert previews == {f"step-{step}.{kind}" for step in ("00000005", "00000010") for kind in ("png", "mp4")}
        assert ("7",) in database.execute("select value from params where key = 'model.depth'").fetchall()


class Remove:
    """Takes the loggers' folders away, as a failing disk does."""

    def on_step(self, fit: TrainState) -> None:
        if fit.step == 3:
            shutil.rmtree(fit.run.folder / "csv")
            (fit.run.folder / "csv").write_text("no folder any more")


def test_a_logger_that_fails_is_said_once_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(guard, "warn", said.append)
    monkeypatch.setattr(guard, "REST_S", 0.0)
    loggers = {"csv": Csv(), "tensorboard": TensorBoard()}
    train("25 steps", callbacks={"remove": Remove()}, loggers=loggers).run(Run(tmp_path))
    assert [line["step"] for line in lines(tmp_path)] == list(range(1, 26))
    assert len(said) == 1 and said[0].startswith("the logger csv failed (") and "training continues" in said[0]
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_a_logger_that_failed_rests_before_it_is_tried_again() -> None:
    class Gone:
        calls = 0

        def log_metrics(self, metrics: object, step: int | None = None) -> None:
            self.calls += 1
            raise ConnectionError("no route to host")

        def finalize(self, status: str) -> None:
            self.calls += 1

    inner = Gone()
    guarded = guard.GuardedLogger("gone", inner)  # type: ignore[arg-type]
    for step in range(5):
        guarded.log_metrics({"loss": 1.0}, step)
    assert inner.calls == 1
    guarded.finalize("success")
    assert inner.calls == 2, "the end is told in any case: what waits may be sent then"


class Broken:
    def open(self, folder: Path) -> object:
        raise ConnectionError("no route to host\n<html>")


def test_a_logger_that_cannot_be_opened_stops_a_run_that_has_nothing_to_lose(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the logger far cannot be opened: ConnectionError: no route to host; fix"):
        train("2 steps", loggers={"far": Broken()}).run(Run(tmp_path))


def test_a_run_that_goes_on_does_without(tmp_path: Path) -> None:
    train("2 steps").run(Run(tmp_path))
    assert train("4 steps", loggers={"far": Broken()}).run(Run(tmp_path)).figures["steps"] == 4


@pytest.mark.parametrize(("source", "package"), [(WeightsAndBiases(), "wandb"), (MLflow(), "mlflow")])
def test_a_missing_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: LoggerSource, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, "")
    with pytest.raises(MissingPackage, match=rf"pip install .*'nemo_vfm\[{package}\]'"):
        source.open(tmp_path)


def test_online_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(UserError, match="export WANDB_API_KEY"):
        WeightsAndBiases(mode="online").open(tmp_path)


KEYS = (
    "https://user:" + "hunter22@mlflow.example.org", "https://hunter22@mlflow.example.org",
    "https://x.org/?api_key=hunter22",
    "https://x.org/a#access_token=hunter22", "0123456789abcdef0123456789abcdef01234567", "AKIAIOSFODNN7EXAMPLE",
    "hf_" + "abcdefghijABCDEFGHIJ123", "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0.x", "local-" + "0123456789abcdef0123",
    "the-key-of-mine",
)  # fmt: skip


@pytest.mark.parametrize("text", KEYS)
@pytest.mark.parametrize(("kind", "variable", "argument"), [
    *((WeightsAndBiases, "WANDB_API_KEY", argument) for argument in ("project", "name", "entity", "tags")),
    *((MLflow, "MLFLOW_TRACKING_TOKEN", argument) for argument in ("experiment", "name", "tags")),
])  # fmt: skip
def test_trackers_refuse_keys_in_a_recipe(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type, variable: str, argument: str
) -> None:
    monkeypatch.setenv(variable, "the-key-of-mine")
    tags = [text] if kind is WeightsAndBiases else {"a": text}
    with pytest.raises(ValueError, match=variable) as error:
        kind(**{argument: tags if argument == "tags" else text})
    assert text not in str(error.value) and "hunter22" not in str(error.value)


NAMES = (
    "world-model-2026-11-21-small-and-wide", "https://wandb.example.org:8443/a?b=c", "a@b", "run 12345678901234567890",
    "Bewegungserkennungsverbesserungsverfahren",
)  # fmt: skip


@pytest.mark.parametrize("text", NAMES)
def test_ordinary_names_are_taken(text: str) -> None:
    assert WeightsAndBiases(project=text, name=text).project == text


@pytest.mark.parametrize("server", [None, "file:/tmp/mlruns", "sqlite:///x.db", "ftp://x.org"])
def test_mlflow_online_without_a_server_says_what_to_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str | None
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    with pytest.raises(UserError, match="export MLFLOW_TRACKING_URI"):
        MLflow(mode="online").open(tmp_path)


def test_a_server_with_a_password_is_refused_since_files_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:" + "hunter22@mlflow.example.org")
    with pytest.raises(UserError, match="give the bare URL") as error:
        MLflow(mode="online").open(tmp_path)
    assert "hunter22" not in str(error.value)


@pytest.mark.parametrize("source", [WeightsAndBiases, MLflow, TensorBoard, Csv])
def test_no_recipe_can_say_where_a_key_is_sent(source: type) -> None:
    takes = set(inspect.signature(source).parameters)
    assert takes <= {"project", "experiment", "name", "entity", "tags", "group", "job_type", "mode"}, (
        "the environment names servers"
    )


@pytest.mark.parametrize("file", yaml_files("recipes"), ids=lambda file: file.stem)
def test_settings_are_the_recipes_values_by_address(file: Path) -> None:
    text = compose(file).to_yaml()
    expected: dict[str, object] = {}

    def walk(value: object, path: str) -> None:
        if isinstance(value, dict) and value:
            for key, below in value.items():
                walk(below, f"{path}.{key}" if path else key)
        elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            for index, item in enumerate(value):
                walk(item, f"{path}.{index}")
        elif isinstance(value, bool | int | float):
            expected[path] = value
        else:
            expected[path] = None  # compared by address alone

    walk(yaml.safe_load(text), "")
    found = flatten(read_values(text, str(file)))
    assert found.keys() == expected.keys()
    plain = {path: value for path, value in expected.items() if isinstance(value, bool | int)}
    assert {path: found[path] for path in plain} == plain


def test_a_number_is_kept_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "id.json"
    one, other = identity.find_or_make(file, "a", "p"), identity.find_or_make(file, None, "p")
    assert (identity.find_or_make(file, "a", "p"), identity.find(file, None, "p")) == (one, other) and one != other
    file.write_text("{")
    with pytest.raises(UserError, match="delete it to start a new run"):
        identity.find(file, "a", "p")


@pytest.mark.slow
def test_check_imports_neither_lightning_nor_trackers() -> None:
    code = """
import sys
from nemo_vfm.cli.main import main
for choice in ("tensorboard", "wandb", "mlflow", "csv"):
    assert main(["check", "recipes/diffusion/train_small.yaml", "data.shards=x", f"loggers={choice}"]) == 0
heavy = {"lightning", "wandb", "mlflow", "tensorboard"} & sys.modules.keys()
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Tracker(BaseHTTPRequestHandler):
    """As much of an MLflow server as a run needs; after two calls with numbers it answers no more."""

    heard: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        call = self.path.partition("?")[0].rpartition("mlflow/")[2]
        self.heard.append((call, self.headers.get("Authorization", "")))
        if sum(name == "runs/log-batch" for name, _ in self.heard) > 3:
            self.close_connection = True
            return
        run = {"info": {"run_id": "r1", "run_uuid": "r1", "experiment_id": "1", "status": "RUNNING"}, "data": {}}
        known = {"experiments/get-by-name": {"experiment": {"experiment_id": "1", "lifecycle_stage": "active"}}}
        answer = json.dumps(known.get(call, {"run": run, "run_info": run["info"]})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.slow
@needs("mlflow")
def test_a_server_gets_the_key_of_the_environment_and_may_go_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(guard, "warn", said.append)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "4f1ecanary7")
    monkeypatch.setattr(Tracker, "heard", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Tracker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        source = MLflow(mode="online")
        train("8 steps", loggers={"far": source}).run(Run(tmp_path, settings=RECIPE))
        server.shutdown()
    assert {key for _, key in Tracker.heard} == {"Bearer 4f1ecanary7"}
    assert [line["step"] for line in lines(tmp_path)] == list(range(1, 9))
    assert len(said) == 1 and said[0].startswith("the logger far failed (")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not any(b"4f1ecanary7" in path.read_bytes() for path in files)
