"""Serves a small random language model over HTTP on loopback, inside the process of the tests."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from nemo_vfm.cli.serving.load_served import ServedSource, load_served
from nemo_vfm.serve.continuous.batch_engine import BatchEngine
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.continuous.key_value_room import KeyValueRoom, bytes_per_token
from nemo_vfm.serve.continuous.model_passes import ModelPasses
from nemo_vfm.serve.openai_api.http_server import HttpServer, Listen
from nemo_vfm.serve.openai_api.routes import application
from nemo_vfm.serve.served_model import ServedModel
from tests.support.language_models import written
from tests.support.tiny_tokenizers import byte_level

NAME = "tiny"
ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
#: Each message between two marks.
TEMPLATE = (
    "{% for m in messages %}{% if m.content is not defined %}{{ raise_exception('a message has no content') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def model_folder(folder: Path) -> Any:
    """A Llama as transformers writes it, with a byte-level tokenizer; the model itself is returned."""
    model = written(folder, "llama", vocab_size=400, max_position_embeddings=2048, initializer_range=0.3)
    byte_level(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    # The likeliest token is never the one that ends a text: tests then know how long an answer is.
    model.lm_head.weight.data[[1, 2]] = 0  # of the tokenizer, and of the config
    model.save_pretrained(folder)
    return model


def reward_folder(folder: Path) -> Any:
    """A Llama that scores five attributes, as transformers writes it; the model itself is returned.

    What ends a turn is also what it pads with, as of many published ones.
    """
    model = written(folder, "llama", transformers.AutoModelForSequenceClassification, vocab_size=400,
                    max_position_embeddings=512, initializer_range=0.3, id2label=dict(enumerate(ATTRIBUTES)),
                    pad_token_id=380)  # fmt: skip
    byte_level(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("\n", "<|pad|>"))
    return model


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    address: str
    engine: EngineThread
    served: ServedModel
    server: HttpServer

    @property
    def port(self) -> int:
        return int(self.address.split(":")[2].split("/")[0])

    def ask(self, body: Any, path: str = "/v1/completions", **headers: str) -> tuple[int, dict[str, str], Any]:
        """(status, headers, JSON) of a POST; a body of bytes is sent as it is."""
        data = body if isinstance(body, bytes) else json.dumps({"model": NAME, **body}).encode()
        sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.call("POST", path, data, sent)

    def call(
        self, method: str, path: str, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(answer.read())
        finally:
            connection.close()


@contextmanager
def running(
    folder: Path, *, key: str | None = None, room_tokens: int = 10_000, max_waiting: int = 64, at_once: int = 8,
    max_body: int = 1 << 20, score_weights: dict[str, float] | None = None,
) -> Iterator[Running]:  # fmt: skip
    """A server of the folder's model; drained and ended at the end."""
    served = load_served(ServedSource(folder, name=NAME, precision="fp32", score_weights=score_weights))
    room = KeyValueRoom(served.model, (room_tokens + 0.5) * bytes_per_token(served.model) / 1e9)
    engine = EngineThread(
        BatchEngine(ModelPasses(served.model, room, at_once), max_running=at_once, piece=16), max_waiting=max_waiting
    )
    server = HttpServer(application(served, engine, max_body_bytes=max_body), Listen(port=0, key=key))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Running(server.address, engine, served, server)
    finally:
        server.drain()
        thread.join(60)
        engine.close()
        assert not thread.is_alive(), "the server has not ended"
