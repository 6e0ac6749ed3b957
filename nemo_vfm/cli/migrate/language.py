"""Writes the facts of a language model's training as GPT, folders of tokens and the task of the next token."""

import re
from typing import NamedTuple

from torch import nn

from nemo_vfm.cli.migrate.adapters import FACTS as ADAPTERS
from nemo_vfm.cli.migrate.adapters import adapters, download_folder, has_adapters, put_folder
from nemo_vfm.cli.migrate.draft import RecipeDraft
from nemo_vfm.cli.migrate.language_data import language_data
from nemo_vfm.models.convert.gpt_weights import tensor_map
from nemo_vfm.models.convert.language.gpt_families import FAMILIES
from nemo_vfm.models.gpt import GPT


class PublishedSize(NamedTuple):
    """A published model."""

    width: int  #: D
    depth: int  #: blocks
    heads: int  #: of attention
    groups: int  #: heads of keys and values
    mlp_hidden: int  #: width inside the perceptron
    vocab: int = 0  #: tokens
    kind: str = "llama"  #: `llama` or `gpt`: norm, activation and positions
    theta: float = 10_000.0  #: of rotary positions
    stretched: float = 0.0  #: how many times longer than it was trained on; 0 is not
    tied: bool = False  #: whether the first and the last matrix are one


#: Ingredients of ours.
PRESETS = {
    "Llama3Config8B": "llama3_8b",
    "Nemotron4Config15B": "nemotron4_15b",
    "Nemotron4Config340B": "nemotron4_340b",
}
SIZES = {
    "Llama2Config7B": PublishedSize(4096, 32, 32, 32, 11008, vocab=32_000),
    "Llama2Config13B": PublishedSize(5120, 40, 40, 40, 13824, vocab=32_000),
    "Llama2Config70B": PublishedSize(8192, 80, 64, 8, 28672, vocab=32_000),
    "Llama3Config70B": PublishedSize(8192, 80, 64, 8, 28672, vocab=128_256, theta=500_000.0),
    "Llama31Config8B": PublishedSize(4096, 32, 32, 8, 14336, vocab=128_256, theta=500_000.0, stretched=8.0),
    "Llama31Config70B": PublishedSize(8192, 80, 64, 8, 28672, vocab=128_256, theta=500_000.0, stretched=8.0),
    "Llama31Config405B": PublishedSize(16384, 126, 128, 8, 53248, vocab=128_256, theta=500_000.0, stretched=8.0),
    "Llama32Config1B": PublishedSize(2048, 16, 32, 8, 8192, vocab=128_256, theta=500_000.0, stretched=32.0, tied=True),
    "Llama32Config3B": PublishedSize(3072, 28, 24, 8, 8192, vocab=128_256, theta=500_000.0, stretched=32.0, tied=True),
    "GPTConfig126M": PublishedSize(768, 12, 12, 12, 3072, kind="gpt", tied=True),
    "GPTConfig5B": PublishedSize(4096, 24, 32, 32, 16384, kind="gpt", tied=True),
    "GPTConfig7B": PublishedSize(4096, 32, 32, 32, 10880, kind="gpt", tied=True),
    "GPTConfig20B": PublishedSize(6144, 44, 48, 48, 24576, kind="gpt", tied=True),
    "GPTConfig40B": PublishedSize(8192, 48, 64, 64, 32768, kind="gpt", tied=True),
    "GPTConfig175B": PublishedSize(12288, 96, 96, 96, 49152, kind="gpt", tied=True),
}
_NAMES = {
    r"llama-?3\.2-1b": "Llama32Config1B", r"llama-?3\.2-3b": "Llama32Config3B",
    r"llama-?3\.[13]-70b": "Llama31Config70B",
    r"llama-?3\.1-8b": "Llama31Config8B", r"llama-?3\.1-405b": "Llama31Config405B", r"llama-?3-8b": "Llama3Config8B",
    r"llama-?3-70b": "Llama3Config70B", r"llama-?2-7b": "Llama2Config7B", r"llama-?2-13b": "Llama2Config13B",
    r"llama-?2-70b": "Llama2Config70B",
}  # fmt: skip
_FAMILIES = ", ".join(name.removesuffix("ForCausalLM") for name in FAMILIES)
_KNOWN = re.compile(r"llama|mistral|ministral|qwen-?[23]|qwq|nemotron-?[34]|minitron|gemma-?3|phi-?[34]", re.IGNORECASE)
#: Of these families, models of another kind: other mixtures of experts, of images, of states.
_OTHERS = re.compile(
    r"moe|-a\d+b|mixtral|vision|multimodal|-vl|audio|omni|embed|llama-?4|next|nemotron-?(?:h|nano)|"
    r"gemma-?3(?:n|-4b|-12b|-27b)|phi-?3-small",
    re.IGNORECASE,
)
_QWEN3_MOE = re.compile(r"qwen-?3-(?:coder-)?\d+b-a\d+b", re.IGNORECASE)
_ROPE = "model.rope"
_ACTIVATIONS = {"gelu": "gelu", "swiglu": "swiglu", "fast-swiglu": "swiglu", "squared-relu": "squared_relu",
                "squared_relu": "squared_relu"}  # fmt: skip
_WHOLE = {"width": "width", "depth": "depth", "heads": "heads", "groups": "groups", "ffn": "mlp_hidden",
          "head_dim": "head_dim", "vocab": "vocab"}  # fmt: skip
_NEEDED = ("vocab", "width", "depth", "heads", "mlp_hidden")
#: Facts that no model of videos has.
FACTS = ("groups", "head_dim", "vocab", "activation", "gated", "norm", "norm_eps", "positions", "rope_share", "theta",
         "tied", "init_std", "bias", "qkv_bias", "qk_norm", "dropout", "tokenizer", "splits", "reset_mask")  # fmt: skip


def language(draft: RecipeDraft) -> None:
    """A recipe that trains a decoder on tokens."""
    draft.put("task._target_", "nemo_vfm.language.next_token_task.NextToken")
    # AutoModel's `from_pretrained`, which its recipes mean where they name a model and nothing else.
    if "pretrained" in draft.facts and not str(draft.get("model_builder")).endswith("from_config"):
        _migrate_pretrained(draft)
    else:
        draft.put("model._target_", "nemo_vfm.models.gpt.GPT")
        _migrate_published(draft)
        for fact, key in _WHOLE.items():
            draft.carry_or_leave(fact, f"model.{key}", draft.integer(fact),
                                 "it is not a number there, so it is derived from the other sizes, or you must set it"
                                 )  # fmt: skip
        if "model" not in draft.choices:
            for key in _NEEDED:
                if f"model.{key}" not in draft.values:
                    draft.put(f"model.{key}", "???", "the tokenizer's" if key == "vocab" else "")
        _blocks(draft)
        if draft.get("positions") == "rope":
            draft.agree("positions", _ROPE)
        else:
            draft.leave("positions", "positions are rotary here, never learned")
        share = draft.number("rope_share")
        share = share if share is not None and share <= 1 else None
        for fact, key, value, why in (
            ("rope_share", "share", share, "it is not a fraction of a head, so the whole head is rotated"),
            ("theta", "theta", draft.number("theta"), "it is not a number above zero, so 10,000 is used"),
        ):
            if value is not None:
                draft.put(f"{_ROPE}._target_", "nemo_vfm.models.blocks.text_rope.TextRope")
            draft.carry_or_leave(fact, f"{_ROPE}.{key}", None if value is None else float(value), why)
        draft.carry_or_leave("tied", "model.tied", draft.flag("tied"),
                             "whether input and output embeddings are tied is true or false: model.tied")  # fmt: skip
        std = draft.number("init_std")
        std = float(std) if std is not None and std <= 100 else None
        draft.carry_or_leave("init_std", "model.init_std", std,
                             "it is not a number between 0 and 100, so 0.02 is used")  # fmt: skip
        _without_weights(draft)
    language_data(draft)
    for fact in ("in_channels", "text_dim", "patch", "codec", "text_encoder", "adapter", "stage", "boundary",
                 "image_share"):  # fmt: skip
        draft.leave(fact, "an argument of a model of videos")


def _migrate_pretrained(draft: RecipeDraft) -> None:
    """The model of a folder of transformers, with its weights."""
    put_folder(draft, "of transformers")
    draft.put("weights.start_from", "${base}")
    draft.put("model._target_", "nemo_vfm.models.convert.gpt_folder.gpt_of_folder")
    draft.put("model.folder", "${base}")
    name = str(draft.get("pretrained"))
    other = _OTHERS.search(name) and not _QWEN3_MOE.search(name)
    if other or (download_folder(name) and not _KNOWN.search(name)):
        draft.differ(f"by its name {name} is no {_FAMILIES}, and no other language model is read from transformers: "
                     "unless it is one, the run will refuse it")  # fmt: skip
    draft.agree("model_builder", "weights.start_from")
    draft.agree("mode", "weights.start_from")
    for fact in ("model_class", "width", "depth", "heads", "ffn", *FACTS):
        if fact not in ("tokenizer", "splits", "reset_mask"):
            draft.leave(fact, "the folder's config.json says it")
    model = GPT(vocab=8, width=8, depth=1, heads=1, mlp_hidden=8)
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    stored = {one: tensor_map(f"{one}.weight", model.sizes).names for one in linears}
    adapters(draft, model, {one: tuple(name.removesuffix(".weight") for name in stored[one]) for one in linears})


def _without_weights(draft: RecipeDraft) -> None:
    for fact in ("model_builder", "mode"):
        draft.leave(fact, "the model begins with random weights, as with from_config; weights.start_from loads "
                    "others")  # fmt: skip
    if not has_adapters(draft):
        return
    draft.differ("their adapters are trained on weights that this file does not name, so all weights are trained; "
                 "weights.start_from and weights.adapters=lora_text take them "
                 "(docs/how-to/language/language_models.md)")  # fmt: skip
    for fact in ADAPTERS:
        draft.leave(fact, "adapters need weights to start from: weights.adapters=lora_text weights.start_from=DIR")


def _migrate_published(draft: RecipeDraft) -> None:
    """A class or the name of a checkpoint that stands for a published model."""
    name = str(draft.get("model_class")).rpartition(".")[2]
    if name in PRESETS or name in SIZES:
        found = name
    else:  # the class of theirs whose sizes a checkpoint has, by its name
        checkpoint = str(draft.get("pretrained")).replace("Meta-", "").replace("meta-", "").replace("_", "-")
        found = next((known for like, known in _NAMES.items() if re.search(like, checkpoint, re.IGNORECASE)), "")
    fact = "model_class" if found == name else "pretrained"
    draft.leave("model_class", "its sizes are not known here; you must set them, unless other keys do")
    draft.leave("pretrained", "its sizes are not known here by this name; you must set them, unless other keys do")
    if found in PRESETS:
        del draft.values["model._target_"]
        why = "its sizes; load their weights with weights.start_from" if fact == "pretrained" else ""
        draft.choose(fact, "model", PRESETS[found], why)
    elif found:
        size = SIZES[found]
        for key in ("width", "depth", "heads", "groups", "mlp_hidden", "tied"):
            draft.put(f"model.{key}", getattr(size, key))
        if size.vocab:
            draft.put("model.vocab", size.vocab)
        if size.kind == "gpt":
            draft.put("model.norm", "layernorm1p")
            draft.put("model.activation", "gelu")
        else:
            draft.put(f"{_ROPE}._target_", "nemo_vfm.models.blocks.text_rope.TextRope")
            draft.put(f"{_ROPE}.theta", size.theta)
        if size.stretched:
            draft.put(f"{_ROPE}.long_context._target_", "nemo_vfm.models.blocks.text_rope.LongContext")
            draft.put(f"{_ROPE}.long_context.factor", size.stretched)
        draft.agree(fact, "model", f"the sizes of {found}; weights.start_from loads its weights")


def _blocks(draft: RecipeDraft) -> None:
    norm, eps = str(draft.get("norm")).lower(), draft.number("norm_eps")
    if norm in ("layernorm1p", "rmsnorm"):
        draft.carry("norm", "model.norm", norm)
    elif norm == "layernorm":
        draft.change("norm", "model.norm", "layernorm1p", "the same function, whose scale is kept less 1")
    else:
        _stand_in(draft, "norm", "layernorm1p", "LayerNorm by default, as theirs; rmsnorm is the other")
    eps = float(eps) if eps is not None and eps <= 1 else None
    draft.carry_or_leave("norm_eps", "model.eps", eps, "it is not a number between 0 and 1, so 1e-5 is used")
    given_name = str(draft.get("activation")).rpartition(".")[2].lower()
    gated = draft.get("gated") is True and given_name in ("silu", "swish")
    if kind := "swiglu" if gated else _ACTIVATIONS.get(given_name):
        draft.carry("activation", "model.activation", kind)
        draft.agree("gated", "model.activation")
    else:
        why = "gelu by default, as in the original; swiglu and squared_relu are the alternatives"
        _stand_in(draft, "activation", "gelu", why)
        draft.leave("gated", "swiglu is gated, the others are not")
    for fact in ("bias", "qkv_bias", "qk_norm", "dropout"):
        value = draft.get(fact)
        if fact in ("qkv_bias", "qk_norm") and isinstance(value, bool):
            draft.carry(fact, f"model.{fact}", value)
        elif value in (False, 0):
            draft.agree(fact, "model", f"there is no {fact} here either")
        else:
            draft.leave(fact, f"blocks have no {fact} here")


def _stand_in(draft: RecipeDraft, fact: str, value: str, why: str) -> None:
    """What is not said is what theirs means by that, unless a published model says it."""
    if "model" not in draft.choices and f"{_ROPE}.theta" not in draft.values:
        draft.values.setdefault(f"model.{fact}", value)
        draft.notes.setdefault(f"model.{fact}", why)
    draft.leave(fact, f"there is no such {fact} here: {why}")
