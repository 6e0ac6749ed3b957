"""Tests that a client that is gone frees its room, and that a server lets answers out before it ends."""

import http.client
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import preloaded
from tests.support.repository import ROOT
from tests.support.served_http import Running

KEY = "sk-canary-77aa01b3c5d9"
FOREVER: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 2000, "n": 4, "temperature": 0}


def wait_for(what: Any) -> None:
    """Until something holds; a minute is for a machine that does much else."""
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "it has not happened within a minute"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_is_gone_frees_its_room(server: Running, stream: bool) -> None:
    wait_for(lambda: server.engine.num_live() == 0)
    free = server.engine.free_tokens()
    body = json.dumps(FOREVER | {"stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = ("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n")  # fmt: skip
        connection.sendall(head.encode() + body)
        wait_for(lambda: server.engine.num_live() == 4 and server.engine.free_tokens() < free)
        if stream:
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
    steps = server.engine._engine.num_tokens
    wait_for(lambda: server.engine.num_live() == 0)
    assert server.engine.free_tokens() == free and server.engine._engine.num_tokens - steps < 4 * 1500


class Process:
    """`nemo-vfm serve` in a process of its own."""

    def __init__(self, folder: Path, output: Path, *words: str) -> None:
        self.output = output
        environment = os.environ | {"PYTHONPATH": str(ROOT), "SERVE_KEY": KEY, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "nemo_vfm", "serve", str(folder), "--port", "0", "--precision", "fp32",
                   "--room-gb", "0.01", *words]  # fmt: skip
        self.process = preloaded.Started(command, err=output, env=environment)
        wait_for(lambda: b"/v1" in output.read_bytes() or self.process.poll() is not None)
        assert self.process.poll() is None, output.read_text()
        self.port = int(output.read_text().split("127.0.0.1:")[1].split("/")[0])

    def begin(
        self, body: dict[str, Any], key: str | None = None, path: str = "/v1/completions"
    ) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        connection.request("POST", path, json.dumps(body), headers)
        return connection

    def live(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/health")
        return int(json.loads(connection.getresponse().read()).get("texts", -1))


@pytest.mark.slow
def test_sigterm_lets_answers_out_takes_no_more_and_ends(folder: tuple[Path, Any], tmp_path: Path) -> None:
    server = Process(folder[0], tmp_path / "output.txt", "--api-key-env", "SERVE_KEY", "--name", "tiny")
    try:
        assert server.begin(FOREVER, "sk-wrong").getresponse().status == 401
        running = server.begin(FOREVER, KEY)
        wait_for(lambda: server.live() == 4)
        os.kill(server.process.pid, signal.SIGTERM)
        wait_for(lambda: server.live() == -1)  # /health says 503, too
        late = server.begin(FOREVER, KEY).getresponse()
        assert late.status == 503 and late.getheader("Retry-After")
        answer = running.getresponse()
        body = answer.read()
        assert answer.status == 200
        assert [choice["finish_reason"] for choice in json.loads(body)["choices"]] == ["length"] * 4
        assert server.process.wait(60) == 0
    finally:
        server.process.kill()
    written = [server.output.read_text(), body.decode(), late.read().decode()]
    assert not any(KEY in text for text in written) and "Traceback" not in written[0]
    assert not [path for path in (*tmp_path.rglob("*"), *folder[0].rglob("*"))
                if path.is_file() and KEY.encode() in path.read_bytes()]  # fmt: skip


@pytest.mark.slow
def test_the_second_signal_ends_at_once(folder: tuple[Path, Any], tmp_path: Path) -> None:
    server = Process(folder[0], tmp_path / "output.txt", "--name", "tiny")
    try:
        running = server.begin(FOREVER | {"n": 64})
        wait_for(lambda: server.live() == 64)
        os.kill(server.process.pid, signal.SIGTERM)
        wait_for(lambda: server.live() == -1)
        os.kill(server.process.pid, signal.SIGTERM)
        with suppress(http.client.HTTPException, ConnectionError):
            assert running.getresponse().status == 500
        assert server.process.wait(60) == 0
    finally:
        server.process.kill()


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--host", "0.0.0.0"], "give --api-key-env"), (["--api-key-env", "NO_SUCH_VARIABLE"], "is empty or not set"),
     (["--room-gb", "-1"], "--room-gb must be at least 0"), (["--room-gb", "1e-9"], "too small for any text"),
     (["--port", "70000"], "--port must be from 0 to 65535")],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_served_is_a_sentence(
    folder: tuple[Path, Any], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from nemo_vfm.cli.main import main

    assert main(["serve", str(folder[0]), "--precision", "fp32", *words]) == 2
    assert said in capsys.readouterr().err
