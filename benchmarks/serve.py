"""Measures `nemo-vfm serve` beside `transformers serve` without continuous batching, over HTTP, with the same weights.

    python benchmarks/serve.py [--quick] [--rounds N] [--json FILE]

A random Llama of 8 layers and width 512 is saved by transformers. Both servers run at once, each a process of its own
with one thread, and take turns: requests of log-normal lengths 16 at once, then some of them one at a time. All ask for
the likeliest tokens. `tokens_per_s_ratio` and `alone_ratio` are medians over rounds of our new tokens a second over
theirs. `echo_max_difference` is the largest difference of echoed log-probabilities from transformers' own forward
pass. `room_ratio` is by how much a server's memory grew at its fullest, from before the model was loaded, over the
weights plus the room for keys and values. Among those that it answers are requests that fill the room (--quick: a
quarter of it).
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

VOCAB, CONTEXT, AT_ONCE, ROOM_GB = 8192, 2048, 16, 1.0
#: Requests, of which alone; median and longest prompt and answer in tokens.
FULL, QUICK = (64, 8, 64, 512, 48, 256), (32, 2, 24, 64, 12, 32)


@dataclass(frozen=True)
class Request:
    """A prompt as text, and how many tokens are to follow."""

    prompt: str
    max_new: int


@dataclass(frozen=True)
class Server:
    """A process that answers on a port of loopback."""

    port: int
    model: str

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of /v1/completions."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=500)
        text = json.dumps({"model": self.model, **body})
        connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {found}")
        return found

    def answer(self, request: Request) -> tuple[str, int]:
        """The text and the number of its tokens."""
        found = self.ask({"prompt": request.prompt, "max_tokens": request.max_new, "temperature": 0})
        return found["choices"][0]["text"], found["usage"]["completion_tokens"]

    def speed(self, requests: Sequence[Request], at_once: int) -> tuple[float, list[str]]:
        """New tokens a second, and the texts."""
        began = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            found = list(pool.map(self.answer, requests))
        return sum(count for _, count in found) / (time.perf_counter() - began), [text for text, _ in found]


def make(folder: Path) -> None:
    """The model, and a byte-level tokenizer without a token that ends a text."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20_000)]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, show_progress=False, initial_alphabet=alphabet)
    made.train_from_iterator([" ".join(words)], trainer)
    assert made.get_vocab_size() == VOCAB, made.get_vocab_size()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=CONTEXT, initializer_range=0.06, bos_token_id=None,
        eos_token_id=None, pad_token_id=0, dtype="float32",
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def requests_of(folder: Path, sizes: tuple[int, ...]) -> list[Request]:
    """Of log-normal lengths."""
    from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer

    count, _, prompt, longest_prompt, answer, longest_answer = sizes
    draw, tokenizer = random.Random(1), FolderTokenizer(folder=folder)

    def length(middle: int, most: int) -> int:
        return min(most, max(1, round(middle * draw.lognormvariate(0, 0.7))))

    return [
        Request(tokenizer.decode([draw.randrange(300, VOCAB) for _ in range(length(prompt, longest_prompt))]),
                length(answer, longest_answer))
        for _ in range(count)
    ]  # fmt: skip


@contextmanager
def started(command: Callable[[int], list[str]], model: str) -> Iterator[Server]:
    """A server that answers /health; ended by SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command(port), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(port, process)
        yield Server(port, model)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the server has not started in two minutes")


def ours(folder: Path, memory: Path) -> Callable[[int], list[str]]:
    """The command of our server, which also writes how far its memory grew."""
    options = ["--precision", "fp32", "--room-gb", str(ROOM_GB), "--at-once", str(AT_ONCE)]
    return lambda port: [sys.executable, __file__, "--measured", str(memory), "--", "serve", str(folder), "--port",
                         str(port), *options]  # fmt: skip


def theirs(folder: Path) -> Callable[[int], list[str]]:
    """The command of transformers' server."""
    return lambda port: [str(Path(sys.executable).with_name("transformers")), "serve", str(folder), "--device", "cpu",
                         "--dtype", "float32", "--port", str(port), "--host", "127.0.0.1"]  # fmt: skip


def measured(memory: Path, words: list[str]) -> int:
    """Run a verb in this process, and write by how many bytes its memory grew at most since before the model."""
    from nemo_vfm.serve.memory_settings import set_memory

    set_memory()  # as the verb does, before torch's first tensor
    import torch

    import nemo_vfm.models.convert.gpt_folder
    import nemo_vfm.serve.continuous.batch_engine
    import nemo_vfm.serve.openai_api.http_server
    import nemo_vfm.serve.openai_api.routes  # noqa: F401
    from nemo_vfm.cli.main import main as verb
    from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
    from nemo_vfm.models.gpt import GPT

    # What the libraries load for a first model is no part of the next.
    with torch.device("meta"):
        GPT(vocab=8, width=8, depth=1, heads=1, mlp_hidden=8)
    FolderTokenizer(folder=Path(words[1])).vocab_size()
    Path("/proc/self/clear_refs").write_text("5")
    before = _kib("VmHWM")
    code = verb(words)
    memory.write_text(str((_kib("VmHWM") - before) * 1024))
    return code


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name)))


def echo_difference(server: Server, folder: Path) -> float:
    """Between our echoed log-probabilities and those of transformers' forward pass."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    draw, worst = random.Random(2), 0.0
    for length in (2, 17, 130, 700):
        tokens = [draw.randrange(VOCAB) for _ in range(length)]
        found = server.ask({"prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 1})
        ours_of = torch.tensor(found["choices"][0]["logprobs"]["token_logprobs"][1:])
        with torch.no_grad():
            logs = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        expected = logs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        worst = max(worst, float((ours_of - expected).abs().max()))
    return worst


def fill_room(server: Server, texts: int) -> None:
    """Texts of nearly the whole context: sixteen of them take the whole room."""
    tokens = [[number + 1] * (CONTEXT - 100) for number in range(texts)]
    server.ask({"prompt": tokens, "max_tokens": 2, "temperature": 0})


def weight_bytes(folder: Path) -> int:
    """Of the model."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter texts, one round")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measured", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measured:
        return measured(given.measured, given.words)
    sizes = QUICK if given.quick else FULL
    rounds = given.rounds or (1 if given.quick else 7)
    with tempfile.TemporaryDirectory() as temporary:
        told = compare(Path(temporary), sizes, rounds)
    for name, value in told.items():
        print(f"{name}: {value:.3g}")
    if given.json:
        given.json.write_text(json.dumps(told))
    return 0


def compare(place: Path, sizes: tuple[int, ...], rounds: int) -> dict[str, float]:
    """The figures."""
    import torch
    import transformers

    folder, memory = place / "llama", place / "memory.txt"
    make(folder)
    requests = requests_of(folder, sizes)
    print(f"torch {torch.__version__}, {os.environ['OMP_NUM_THREADS']} thread each, transformers "
          f"{transformers.__version__}, fp32, {weight_bytes(folder) / 1e6:.0f} MB of weights, room {ROOM_GB} GB, "
          f"{len(requests)} requests, {sum(one.max_new for one in requests)} new tokens, {AT_ONCE} at once, "
          f"{rounds} rounds")  # fmt: skip
    figures: dict[str, list[float]] = {"tokens_per_s_ratio": [], "alone_ratio": []}
    with started(ours(folder, memory), "llama") as us, started(theirs(folder), str(folder)) as them:
        for server in (us, them):
            server.speed(requests[:2], 1)  # the first loads and warms up
        for _ in range(rounds):
            for name, chosen, at_once in (("tokens_per_s_ratio", requests, AT_ONCE),
                                          ("alone_ratio", requests[: sizes[1]], 1)):  # fmt: skip
                (speed, texts), (other, other_texts) = us.speed(chosen, at_once), them.speed(chosen, at_once)
                same = sum(map(str.__eq__, texts, other_texts))
                print(f"{at_once} at once: {speed:.1f} and {other:.1f} tokens/s, {same} of {len(texts)} texts equal")
                figures[name].append(speed / other)
        difference = echo_difference(us, folder)
        fill_room(us, 4 if sizes == QUICK else AT_ONCE)
    grown = int(memory.read_text())
    return {
        **{name: median(values) for name, values in figures.items()}, "echo_max_difference": difference,
        "room_ratio": grown / (weight_bytes(folder) + ROOM_GB * 1e9),
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
