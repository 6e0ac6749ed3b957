"""Runs an OpenAI-compatible server on 127.0.0.1 that shows faults on order and notes its requests."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.core.network.ssrf_guard import service_url

#: What a fault does instead of answering: it is given the handler and the question.
Fault = Callable[["Handler", dict], None]


def answer(text: str, **changes: object) -> dict:
    """A whole answer of `chat/completions`."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 11, "completion_tokens": len(text.split())}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "tiny-vlm", "choices": [choice], "usage": usage,
            "system_fingerprint": "fp_1", **changes}  # fmt: skip


def allowed(url: str, variable: str | None = None) -> Permissions:
    """What a user says who types `--allow-host` for the host of a URL."""
    return Permissions.of(service_url(url).origin + ("" if variable is None else f"={variable}"))


@dataclass
class ChatServer:
    """What a test sees of the server, and may change while it runs."""

    url: str = ""
    reply: Callable[[dict], dict] = lambda question: answer("a cat sits on a wall")
    faults: list[Fault] = field(default_factory=list)  #: used up one a request, before `reply`
    always: Fault | None = None
    questions: list[dict] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    at_once: int = 0
    max_at_once: int = 0
    flooded_mb: int = 0  #: what `flood` could give away
    lock: threading.Lock = field(default_factory=threading.Lock)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: ChatServer

    def do_POST(self) -> None:
        state = self.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with state.lock:
            state.questions.append(body)
            state.headers.append(dict(self.headers))
            state.paths.append(self.path)
            state.at_once += 1
            state.max_at_once = max(state.max_at_once, state.at_once)
            fault = state.faults.pop(0) if state.faults else state.always
        try:
            self.send(200, state.reply(body)) if fault is None else fault(self, body)
        except OSError:
            pass  # the client has gone
        finally:
            with state.lock:
                state.at_once -= 1

    def do_GET(self) -> None:
        self.state.paths.append(f"GET {self.path}")
        self.send(404, {})

    def send(self, status: int, body: object, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def status(code: int, body: object = b"", **headers: str) -> Fault:
    """A fault: this status."""
    return lambda handler, _: handler.send(code, body, **headers)


def hang(seconds: float) -> Fault:
    """A fault: no byte for so long."""
    return lambda handler, _: time.sleep(seconds)


def drip(handler: Handler, _: dict) -> None:
    """A fault: a byte of the body now and then, for ever."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def drip_headers(handler: Handler, _: dict) -> None:
    """A fault: a byte of the headers now and then, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        handler.wfile.write(b"z")
        handler.wfile.flush()
        time.sleep(0.05)


def flood(declared: bool) -> Fault:
    """A fault: 10 GB, announced or not."""

    def send(handler: Handler, _: dict) -> None:
        handler.send_response(200)
        if declared:
            handler.send_header("Content-Length", str(10**10))
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        for _i in range(10_000):
            handler.wfile.write(b" " * 1_000_000)
            handler.state.flooded_mb += 1

    return send


def half(handler: Handler, _: dict) -> None:
    """A fault: half of an answer, and then the connection ends."""
    data = json.dumps(answer("a cat")).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.close_connection = True


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """The server while the block runs."""
    state = ChatServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"state": state}))
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
