"""Serve a language model or a reward model behind an OpenAI-compatible endpoint.

It listens on loopback. SIGTERM lets running answers out, and the exit status is 0 (docs/how-to/language/serve.md).

Examples:
  nemo-vfm serve runs/mine                                   # http://127.0.0.1:8000/v1
  nemo-vfm serve models/llama --port 8000 --room-gb 4        # a folder of transformers
  nemo-vfm serve models/llama --host 0.0.0.0 --api-key-env KEY   # for other machines
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import add_allow_host, add_trust

if TYPE_CHECKING:
    from nemo_vfm.serve.continuous.model_passes import ModelPasses
    from nemo_vfm.serve.openai_api.http_server import Listen
    from nemo_vfm.serve.served_model import ServedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, the address and the limits."""
    parser.add_argument("model", metavar="MODEL", type=Path,
                        help="a run folder, a checkpoint, what `convert` wrote, or a transformers folder, also of a "
                             "reward model")  # fmt: skip
    parser.add_argument("--port", metavar="N", type=int, default=8000, help="0 picks a free port (default 8000)")
    parser.add_argument("--host", metavar="HOST", default="127.0.0.1",
                        help="address to listen on; access from other machines needs --api-key-env")  # fmt: skip
    parser.add_argument("--api-key-env", metavar="VARIABLE",
                        help="environment variable with the key that requests must send")  # fmt: skip
    parser.add_argument("--allow-name", metavar="NAME", action="append", default=[],
                        help="another host name that requests may use, such as a proxy's")  # fmt: skip
    parser.add_argument("--name", metavar="NAME", help="what clients call the model (default: the folder's name)")
    parser.add_argument("--tokenizer", metavar="DIR", type=Path, help="tokenizer folder, if the model has none")
    parser.add_argument("--weights", choices=("ema", "model"), help="of a checkpoint (default: ema, if saved)")
    parser.add_argument("--context", metavar="TOKENS", type=int, help="longest text (default: as trained)")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="auto",
                        help="of weights and arithmetic (default auto)")  # fmt: skip
    parser.add_argument("--attributes", metavar="NAME,...", type=_names,
                        help="of a reward model's outputs in order, _ leaves one out (default: id2label)")  # fmt: skip
    parser.add_argument("--score-weights", metavar="NAME=NUMBER,...", type=_weights,
                        help="of attributes in a reward model's one score (default: none)")  # fmt: skip
    parser.add_argument("--reasoning-parser", choices=("think",),
                        help="give <think>...</think> as reasoning_content (default: as content)")  # fmt: skip
    parser.add_argument("--room-gb", metavar="GB", type=float, default=2.0,
                        help="memory for keys and values, never exceeded (default 2)")  # fmt: skip
    parser.add_argument("--at-once", metavar="N", type=int, default=16, help="texts generated at once (default 16)")
    parser.add_argument("--queue", metavar="N", type=int, default=256,
                        help="texts that may wait; further requests get 429 (default 256)")  # fmt: skip
    parser.add_argument("--piece", metavar="TOKENS", type=int, default=128,
                        help="of a prompt read between two tokens of running texts (default 128)")  # fmt: skip
    parser.add_argument("--tensor", metavar="N", type=int, default=1,
                        help="devices that split the model; started here unless by torchrun or srun (default "
                        "1)")  # fmt: skip
    parser.add_argument("--max-body-mb", metavar="MB", type=float, default=8.0, help="longest request (default 8)")
    add_trust(parser, "the run's recipe may name")
    add_allow_host(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load the model, print the address, and answer until SIGTERM or Ctrl-C."""
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.optional import require

    lowest_of = {"at_once": 1, "queue": 0, "piece": 1, "context": 1, "tensor": 1, "room_gb": 0, "max_body_mb": 0}
    for name, lowest in lowest_of.items():
        value = getattr(arguments, name)
        if value is not None and not lowest <= value < 1 << 40:
            raise UserError(f"--{name.replace('_', '-')} must be at least {lowest}, got {value}")
    if not 0 <= arguments.port < 1 << 16:
        raise UserError(f"--port must be from 0 to 65535, got {arguments.port}")
    for package in ("starlette", "uvicorn"):
        require(package, purpose="Serving a model")
    from nemo_vfm.serve.memory_settings import blocks_side_by_side, set_memory

    set_memory()
    from nemo_vfm.core import ranks
    from nemo_vfm.core.secret import key_of
    from nemo_vfm.serve.continuous.key_value_room import KeyValueRoom
    from nemo_vfm.serve.continuous.model_passes import ModelPasses
    from nemo_vfm.serve.continuous.packed_block import pack_modules
    from nemo_vfm.serve.openai_api.http_server import Listen

    try:
        key = None if arguments.api_key_env is None else key_of(arguments.api_key_env)
    except ValueError as error:
        raise UserError(f"{error}; export it, then start the server again") from None
    listen = Listen(arguments.host, arguments.port, key, tuple(arguments.allow_name))
    answer = partial(_answer, arguments, listen)
    if arguments.tensor > 1 or ranks.count() > 1:
        from nemo_vfm.cli.serving.tensor_ranks import TensorServing, serve_on_ranks

        serving = TensorServing(arguments.tensor, _words(arguments), arguments.room_gb, arguments.at_once)
        return serve_on_ranks(serving, partial(_load, arguments), answer)
    served = _load(arguments)
    room = KeyValueRoom(served.model, arguments.room_gb)
    with blocks_side_by_side():
        pack_modules(served.model)
    return answer(served, ModelPasses(served.model, room, arguments.at_once))


def _words(arguments: argparse.Namespace) -> list[str]:
    """The command line again, for ranks that must be started."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    words = ["serve"]
    for action in parser._actions:
        value = getattr(arguments, action.dest)
        if action.option_strings and value != action.default:
            for one in value if isinstance(value, list) else [value]:
                # As it is typed: `_names` and `_weights` read texts with commas.
                parts = [f"{name}={number}" for name, number in one.items()] if isinstance(one, dict) else one
                text = ",".join(parts) if isinstance(parts, list | tuple) else str(parts)
                words.append(f"{action.option_strings[0]}={text}")
    return [*words, "--", str(arguments.model)]


def _answer(arguments: argparse.Namespace, listen: "Listen", served: "ServedModel", passes: "ModelPasses") -> int:
    from nemo_vfm.core.sanitize import printable
    from nemo_vfm.serve.continuous.batch_engine import BatchEngine
    from nemo_vfm.serve.continuous.engine_thread import EngineThread
    from nemo_vfm.serve.memory_settings import collapse_pages
    from nemo_vfm.serve.openai_api.http_server import HttpServer
    from nemo_vfm.serve.openai_api.routes import application

    batch = BatchEngine(passes, max_running=arguments.at_once, piece=arguments.piece)
    collapse_pages()
    engine = EngineThread(batch, max_waiting=arguments.queue)
    app = application(served, engine, max_body_bytes=int(arguments.max_body_mb * 1e6),
                      split_thoughts=arguments.reasoning_parser is not None)  # fmt: skip
    server = HttpServer(app, listen)
    note = served.generation.note
    sys.stdout.write(f"{printable(served.name, 200)} at {server.address}, room for {engine.max_tokens():,} tokens\n")
    sys.stdout.write(f"{printable(note, 1000)}\n" if note else "")
    sys.stdout.flush()
    server.run()
    engine.close()
    return 0


def _load(arguments: argparse.Namespace) -> "ServedModel":
    from nemo_vfm.cli.serving.load_served import ServedSource, load_served

    return load_served(ServedSource(
        arguments.model, name=arguments.name, tokenizer=arguments.tokenizer, weights=arguments.weights,
        context=arguments.context, precision=arguments.precision, attributes=arguments.attributes,
        score_weights=arguments.score_weights, trust=arguments.trust,
        allow_host=arguments.allow_host,
    ))  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _weights(text: str) -> dict[str, float]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    try:
        found = {name.strip(): float(number) for name, _, number in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not NAME=NUMBER, or several with commas") from None
    if len(found) < len(pairs):
        raise argparse.ArgumentTypeError("an attribute has two weights")
    return found
