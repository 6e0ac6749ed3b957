"""Tries a foreign tokenizer in a limited process: its library may abort, panic, or take all memory, and us with it."""

import json
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.process import how_it_ended, lower_limits, run_module
from nemo_vfm.core.types.json_value import Json

_MEMORY_GB, _BYTES_PER_BYTE = 2.0, 40  # a vocabulary takes about 20 times its file
_CPU_S, _CPU_S_PER_MB = 20, 1
_MAX_TOKEN = 1 << 14  # letters; an answer has thousands of tokens
_MAX_GROWTH = 64  # letters that normalizer and decoder may make of one; the usual ones make one
_WRONG = 3


def require_sound(path: Path) -> None:
    """Load a tokenizer, encode and decode with it, in a process of its own."""
    size = path.stat().st_size
    memory, cpu_s = int(_MEMORY_GB * 1e9) + _BYTES_PER_BYTE * size, _CPU_S + _CPU_S_PER_MB * (size >> 20)
    quiet = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "RUST_BACKTRACE": "0"}
    done = run_module(__name__, [str(path), str(memory), str(cpu_s)], env={**os.environ, **quiet})
    if done.returncode == 0:
        return
    reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]
    if done.returncode < 0:
        ended = how_it_ended(done.returncode, done.stderr)
        reason = f"its library, which had {memory / 1e9:.1f} GB and {cpu_s} s, {ended}"
    raise DataError(f"{path.name} of {path.parent.name} cannot be read: {reason}")


def main() -> None:
    """The child: limits itself, and tries the tokenizer that its command line names."""
    path, memory, cpu_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    lower_limits({resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: memory, resource.RLIMIT_CPU: cpu_s})
    try:
        (_try_json if path.suffix == ".json" else _try_sentencepiece)(path)
    except BaseException as error:  # a panic of a library is no Exception
        sys.stderr.write(f"\n{str(error)[:300] or type(error).__name__}\n")
        sys.exit(_WRONG)


def _try_json(path: Path) -> None:
    import tokenizers

    made = tokenizers.Tokenizer.from_file(str(path))
    made.no_truncation()
    made.no_padding()
    told = json.loads(path.read_bytes())
    for part in ("normalizer", "decoder"):
        if (found := growth(told.get(part))) > _MAX_GROWTH:
            raise ValueError(f"its {part} turns a character into up to {found:,.0f}; at most {_MAX_GROWTH} are allowed")
    if (longest := max(map(len, made.get_vocab(with_added_tokens=True)), default=0)) > _MAX_TOKEN:
        raise ValueError(f"it has a token of {longest:,} characters; at most {_MAX_TOKEN:,} are allowed")
    made.decode(made.encode(_probe(), add_special_tokens=False).ids)


def _try_sentencepiece(path: Path) -> None:
    import sentencepiece

    made = sentencepiece.SentencePieceProcessor(model_file=str(path))
    made.decode(made.encode(_probe(), out_type=int))


def _probe() -> str:
    """Every usual sign, alone and repeated."""
    signs = [*map(chr, range(32, 127)), "\n", "\t", "\u00c9", "\u0301", "\u4e2d", "\U0001f642", "\u2581", "\0"]
    return "".join(signs) + " ".join(sign * 20 for sign in signs)


def growth(part: Json) -> float:
    """Letters that a normaliser or a decoder makes of one letter at most, as far as its replacements go."""
    if not isinstance(part, Mapping):
        return 1.0
    if part.get("type") == "Replace":
        pattern, content = part.get("pattern"), part.get("content")
        literal = pattern.get("String") if isinstance(pattern, Mapping) else None
        shortest = len(literal) if isinstance(literal, str) and literal else 1
        return max(1.0, len(content) / shortest) if isinstance(content, str) else 1.0
    if part.get("type") == "Prepend":
        return 1.0 + len(str(part.get("prepend")))
    found = 1.0
    for inner in (*(part.get("normalizers") or ()), *(part.get("decoders") or ())):
        found *= growth(inner)
    return found
