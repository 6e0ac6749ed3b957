"""Tests that configurations of other frameworks become recipes that check, with an account of every key."""

import ast
import functools
import inspect
import math
import re
import sys
import typing

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.cli.migrate import FORMATS, Migration, migrate
from nemo_vfm.cli.migrate.draft import UNKNOWN
from nemo_vfm.cli.migrate.foreign_yaml import scalar_value
from nemo_vfm.cli.migrate.published_video import pipeline_of
from nemo_vfm.cli.migrate.recipe_text import recipe_text
from nemo_vfm.config import DEFAULT_TRUST, build, check, compose, read_values
from nemo_vfm.config.yaml_source import parse
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.types.sample_batches import TokenBatch, VideoBatch
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.tokens.token_data import TokenData
from nemo_vfm.diffusion.objective import FlowMatching
from nemo_vfm.models.adapters.low_rank_adapter import AdapterTarget, LowRankAdapter
from nemo_vfm.models.blocks.text.decoder import Activation, NormKind
from nemo_vfm.models.convert.language.gpt_families import FAMILIES
from nemo_vfm.models.convert.video.transformer_folder import FAMILIES as VIDEO_FAMILIES
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.models.transformers_text import TransformersTextEncoder
from nemo_vfm.parallel.engine.param_groups import ParamGroup
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from tests.support import foreign
from tests.support.recipe_folder import ROOT, Kitchen

GIVEN = {"data.shards": "shards", "data.buckets.buckets.all.num_frames": "9"}
HASHED = ["task.text_encoder=hashed", "model.text_dim=256"]
ODD = [None, True, -1, 0.5, 10**30, "", "a text", "${env:X}", "???", (1, 2), ("x",), ()]


def migrated(kitchen: Kitchen, text: str) -> dict:
    """The values of the recipe that a text becomes, composed."""
    kitchen.write("theirs.yaml", text)
    assert kitchen.main("migrate", "theirs.yaml", "-o", "ours.yaml") == 0
    return read_values(compose("ours.yaml").to_yaml(), "ours.yaml")


def leaves(node: object, path: str = "") -> list[str]:
    """The addresses of a YAML's values, as PyYAML reads it: lists of single values are one."""
    if isinstance(node, dict) and node:
        return [leaf for key, below in node.items() for leaf in leaves(below, f"{path}.{key}".lstrip("."))]
    if isinstance(node, list) and any(isinstance(item, list | dict) for item in node):
        return [leaf for i, below in enumerate(node) for leaf in leaves(below, f"{path}.{i}")]
    return [path]


def fates(text: str) -> dict[str, str]:
    """Address -> verdict."""
    return {entry.key.path: entry.fate.verdict for entry in migrate(text, "theirs.yaml").entries}


@pytest.mark.parametrize("name", foreign.ALL)
def test_every_key_is_in_exactly_one_list(name):
    entries = migrate(foreign.ALL[name], name).entries
    assert sorted(entry.key.path for entry in entries) == sorted(leaves(yaml.safe_load(foreign.ALL[name])))
    assert all(entry.fate.verdict in ("carried", "changed", "left") for entry in entries)
    assert all(entry.fate.why for entry in entries if entry.fate.verdict != "carried")
    assert all(entry.fate.where for entry in entries if entry.fate.verdict != "left")


@pytest.mark.parametrize("name", foreign.ALL)
def test_a_format_and_what_is_trained_are_recognised(name):
    found = migrate(foreign.ALL[name], name)
    assert found.form.name == name.partition("_")[0]
    assert found.draft.kind == ("language" if name.endswith("_language") else "diffusion")


@pytest.mark.parametrize("name", foreign.ALL)
def test_a_migrated_recipe_checks_and_says_every_value_that_was_left_behind(kitchen, capsys, name):
    kitchen.write("theirs.yaml", foreign.ALL[name])
    assert kitchen.main("migrate", "theirs.yaml") == 0
    told, text = capsys.readouterr().out, (kitchen.folder / "recipes/theirs.yaml").read_text()
    assert "passes the check" in told
    for entry in migrate(foreign.ALL[name], name).of("left"):
        assert f"{entry.key.line}: {entry.key.path} = " in text
        assert f"{entry.key.path}: " in told
    assert kitchen.main("check", "recipes/theirs.yaml") == 0


def test_automodel_keeps_its_numbers(kitchen):
    ours = migrated(kitchen, foreign.AUTOMODEL)
    assert (ours["seed"], ours["loop"]["duration"]) == (7, "9000 steps")
    assert (ours["data"]["batch_size"], ours["data"]["num_workers"], ours["data"]["shards"]) == (16, 3, "films/cache")
    bucket = ours["data"]["buckets"]["buckets"]["all"]
    assert (bucket["width"], bucket["height"], bucket["num_frames"]) == (640, 384, "???")
    assert (
        ours["base"] == ours["weights"]["start_from"] == "models/Wan2.1-T2V-1.3B"
        and ours["model"]["folder"] == ours["base"]
    )
    assert ours["optimizer"] == {
        "_target_": "nemo_vfm.parallel.engine.param_groups.grouped_optimizer",
        "lr": 2e-5,
        "betas": [0.9, 0.95],
        "weight_decay": 0.05,
        "groups": {},
    }
    assert ours["schedule"]["_target_"].endswith("WarmupCosine")
    assert (ours["schedule"]["warmup_steps"], ours["schedule"]["final_fraction"]) == (100, 0.1)
    objective = ours["task"]["objective"]
    assert (objective["shift"], objective["logit_mean"], objective["logit_std"]) == (2.5, 0.5, 1.5)
    assert (objective["uniform_fraction"], objective["noise_weight"]) == (0.2, 0.0)
    assert ours["precision"]["compute"] == "bf16" and ours["loop"]["checkpoint"]["every_steps"] == 500


def test_of_megatrons_formats_norms_and_biases_do_not_decay(kitchen):
    drafts = {name: migrate(text, name).draft.values for name, text in foreign.ALL.items()}
    sparing = {name: values.get("optimizer.groups.no_decay.parameters") for name, values in drafts.items()}
    assert {name for name, patterns in sparing.items() if patterns is None} == {"automodel", "automodel_language"}, (
        "plain AdamW"
    )
    group = ParamGroup(
        parameters=sparing["nemo1"], weight_decay=drafts["nemo1"]["optimizer.groups.no_decay.weight_decay"]
    )
    assert group.weight_decay == 0.0 and len(set(sparing.values())) == 2
    sizes = {"width": 24, "depth": 1, "heads": 2}
    with torch.device("meta"):
        models = [GPT(vocab=8, mlp_hidden=8, qkv_bias=True, qk_norm=True, norm="layernorm1p", **sizes),
                  DiT(in_channels=4, text_dim=8, **sizes), STDiT(in_channels=4, text_dim=8, **sizes)]  # fmt: skip
    for name, parameter in (named for model in models for named in model.named_parameters()):
        assert group.matches(name) == (parameter.ndim < 2), name
    ours = migrated(kitchen, foreign.NEMO2_LANGUAGE)["optimizer"]["groups"]
    assert ours == {"no_decay": {"parameters": ["*norm.weight", "*.bias"], "weight_decay": 0.0}}


def test_linear_loss_weighting_is_the_weight_of_ours():
    draft = migrate(foreign.AUTOMODEL.replace("use_loss_weighting: false", "use_loss_weighting: true"), "x").draft
    assert draft.values["task.objective.noise_weight"] == draft.values["task.objective.shift"] == 2.5


def test_without_sigma_noise_draws_are_uniform_and_not_shifted():
    draft = migrate(foreign.AUTOMODEL.replace("use_sigma_noise: true", "use_sigma_noise: false"), "x").draft
    assert (draft.values["task.objective.shift"], draft.values["task.objective.uniform_fraction"]) == (1.0, 1.0)


def test_weights_and_biases_is_carried_where_it_was_on(kitchen):
    ours = migrated(kitchen, foreign.AUTOMODEL)["loggers"]["wandb"]
    assert (ours["project"], ours["name"], ours["mode"]) == ("films", "first", "online")
    assert not [address for address in migrate(foreign.NEMO1, "x").draft.values if "wandb" in address]
    off = foreign.AUTOMODEL.replace("wandb: {", "wandb: {enable: false, ")
    assert fates(off)["wandb.project"] == "left"


@pytest.mark.parametrize("name", ["nemo1", "nemo2", "dfm"])
def test_a_migrated_recipe_takes_a_step_from_pixels_and_captions(kitchen, name):
    """The stand-ins for VAE and text encoder fit the model, and the optimizer takes its parameters."""
    kitchen.write("theirs.yaml", foreign.ALL[name])
    kitchen.main("migrate", "theirs.yaml", "-o", "ours.yaml")
    gaps = {
        address: value
        for address, value in GIVEN.items()
        if migrate(foreign.ALL[name], "x").draft.values.get(address) == "???"
    }
    drafted = migrate(foreign.ALL[name], "x").draft.values
    alone = [*HASHED, *(["~parallel"] if "parallel._target_" in drafted else [])]
    small = ["model.width=48", "model.depth=1", "model.heads=2"]
    job = build(compose("ours.yaml", [*small, *alone, *(f"{address}={value}" for address, value in gaps.items())]))
    video = torch.randint(0, 256, (2, 3, 1, 16, 16), dtype=torch.uint8)
    batch = VideoBatch(
        0, ("a", "b"), torch.ones(2), ("a red ball", "a blue box"), torch.full((2,), 8.0), video_BCTHW=video
    )
    runner = job.engine.start(EngineInputs(job.model, job.task, job.optimizer, Precision("fp32"), 0))
    assert math.isfinite(runner.step([batch]).loss)


def test_dfm_keeps_its_numbers(kitchen):
    ours = migrated(kitchen, foreign.DFM)
    assert (ours["seed"], ours["loop"]["duration"], ours["data"]["batch_size"]) == (1234, "5000 steps", 32)
    assert ours["data"]["shards"] == "???", "a variable that may not be set here is for the user to give"
    assert (ours["model"]["width"], ours["model"]["depth"], ours["model"]["mlp_ratio"]) == (1152, 28, 4.0)
    assert ours["optimizer"]["betas"] == [0.9, 0.95] and ours["schedule"]["final_fraction"] == 0.1
    assert (ours["engine"]["clip_norm"], ours["loop"]["validation"]["every_steps"]) == (1.0, 250)
    assert ours["task"]["objective"]["_target_"].endswith("EDM")


def test_nemo_2_keeps_its_numbers(kitchen):
    ours = migrated(kitchen, foreign.NEMO2)
    assert (ours["loop"]["duration"], ours["data"]["batch_size"]) == ("10000 epochs", 48)
    assert (ours["model"]["width"], ours["model"]["depth"], ours["model"]["heads"]) == (3072, 32, 24)
    assert ours["schedule"] == {"_target_": "nemo_vfm.train.optim.Constant", "warmup_steps": 100}
    assert (ours["loop"]["checkpoint"]["every_steps"], ours["loop"]["checkpoint"]["keep_last"]) == (1000, 3)
    assert ours["task"]["objective"] == {"_target_": "nemo_vfm.diffusion.objective.EDM", "sigma_data": 0.5}


@pytest.mark.parametrize(("theirs", "ours"), [("DiTConfig", "dit_s"), ("DiTBConfig", "dit_b"), ("DiTLConfig", "dit_l"),
                                              ("DiTXLConfig", "dit_xl")])  # fmt: skip
def test_the_sizes_of_nemo_2_are_presets_of_ours(theirs, ours):
    assert migrate(foreign.NEMO2.replace("DiT7BConfig", theirs), "x").draft.choices["model"] == ours


def test_nemo_1_keeps_its_numbers(kitchen):
    ours = migrated(kitchen, foreign.NEMO1)
    assert (ours["seed"], ours["loop"]["duration"], ours["data"]["batch_size"]) == (1234, "2 epochs", 32)
    assert ours["data"]["buckets"]["buckets"]["all"]["num_frames"] == 1, "stable diffusion makes pictures"
    assert ours["data"]["shards"] == "/datasets/pictures"
    assert (
        ours["callbacks"]["ema"]["decay"],
        ours["loop"]["checkpoint"]["keep_last"],
        ours["engine"]["clip_norm"],
    ) == (0.999, None, 0.5)
    assert ours["precision"]["compute"] == "bf16" and ours["task"]["text_dropout"] == 0.1


def test_a_llama_of_nemo_2_is_our_llama_and_its_data_folders_of_tokens(kitchen):
    ours = migrated(kitchen, foreign.NEMO2_LANGUAGE)
    assert (ours["model"]["width"], ours["model"]["groups"], ours["model"]["vocab"]) == (4096, 8, 128_256)
    assert ours["task"]["_target_"] == "nemo_vfm.language.next_token_task.NextToken"
    assert [one["folder"] for one in ours["data"]["sources"].values()] == ["one/text", "two/text"]
    assert (ours["data"]["sequence_length"], ours["data"]["batch_size"]) == (8192, 512)
    assert (ours["loop"]["duration"], ours["optimizer"]["lr"], ours["schedule"]["warmup_steps"]) == (
        "10000 steps",
        3e-4,
        2000,
    )


@pytest.mark.parametrize(("format_", "scales", "expected"), [
    ("hybrid", "blockwise", ("hybrid", "block")), ("e4m3", None, ("e4m3", "current")), (False, "blockwise", None),
])  # fmt: skip
def test_fp8_of_nemo_2_is_ours_with_its_scales(kitchen, format_, scales, expected):
    words = {"trainer.plugins.fp8": format_, "trainer.plugins.fp8_recipe": scales}
    kitchen.write("ours.yaml", recipe_text(_with(words, "nemo2", "language"), "theirs.yaml", "ours.yaml"))
    precision = read_values(compose("ours.yaml").to_yaml(), "ours.yaml")["precision"]
    fp8 = precision.get("fp8")
    assert (None if fp8 is None else (fp8["format"], fp8["recipe"])) == expected


def test_a_gpt_of_nemo_1_keeps_its_model_data_plan_and_training(kitchen):
    ours = migrated(kitchen, foreign.NEMO1_GPT)
    assert ours["model"] == {
        "_target_": "nemo_vfm.models.gpt.GPT", "vocab": 32_000, "width": 512, "depth": 6, "heads": 8, "groups": 4,
        "mlp_hidden": 1408, "activation": "swiglu", "norm": "rmsnorm", "eps": 1e-6, "tied": False, "init_std": 0.01,
        "rope": {"_target_": "nemo_vfm.models.blocks.text_rope.TextRope", "share": 0.5, "theta": 500_000.0},
    }  # fmt: skip
    data = ours["data"]
    assert (data["sequence_length"], data["batch_size"], data["packing"]) == (1024, 64, "documents")
    assert {name: (one["folder"], one["weight"]) for name, one in data["sources"].items()} == {
        "web_text_document": ("/texts/web_text_document", 0.3),
        "books_text_document": ("/texts/books_text_document", 0.7),
    }
    assert (data["val_fraction"], data["tokenizer"]["folder"]) == (0.015, "/texts/tokenizer")
    plan = ours["parallel"]
    assert (plan["tensor"], plan["pipeline"], plan["context"], plan["shard"]) == (2, 2, 2, 2)
    assert (plan["sequence"], plan["microbatches"]) == (True, 16), "64 rows over 2 data ranks, 2 at a time"
    assert (ours["loop"]["checkpoint"]["keep_best"], ours["loop"]["checkpoint"]["every_steps"]) == (4, 200)
    assert (ours["engine"]["clip_norm"], ours["engine"]["recompute"]) == (0.8, "blocks")
    assert (ours["loop"]["duration"], ours["schedule"]["final_fraction"], ours["seed"]) == ("3000 steps", 0.1, 7)


def test_of_a_gpt_of_nemo_1_every_key_that_is_left_has_a_reason_of_its_own():
    entries = migrate(foreign.NEMO1_GPT, "x").entries
    assert not [entry.key.path for entry in entries if entry.fate.why == UNKNOWN]
    assert sum(entry.fate.verdict != "left" for entry in entries) >= 45


def test_the_degrees_of_dfm_are_a_plan(kitchen):
    more = "  context_parallel_size: 8\n  sequence_parallel: true\n  recompute_granularity: full\n  hidden_size: 1152"
    plan = migrated(kitchen, foreign.DFM.replace("  hidden_size: 1152", more))
    assert (plan["parallel"]["tensor"], plan["parallel"]["context"], plan["parallel"]["sequence"]) == (4, 8, True)
    assert plan["parallel"]["microbatches"] == 32 and plan["engine"]["recompute"] == "blocks"


def test_the_degrees_of_automodel_are_a_plan(kitchen):
    text = foreign.AUTOMODEL.replace("fsdp: {tp_size: 2, cp_size: 1, dp_size: none}",
                                     "fsdp: {tp_size: 2, cp_size: 4, dp_size: 8, dp_replicate_size: 2}")  # fmt: skip
    plan = migrated(kitchen, text)["parallel"]
    assert (plan["tensor"], plan["context"], plan["shard"], plan["replicate"], plan["microbatches"]) == (2, 4, 4, 2, 1)


def test_degrees_that_make_no_plan_are_left_with_the_sentence():
    text = foreign.NEMO1_GPT.replace("pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 64")
    fate = {entry.key.path: entry.fate for entry in migrate(text, "x").entries}["model.pipeline_model_parallel_size"]
    assert fate.verdict == "left" and "parallel.microbatches = " in fate.why


def test_a_text_encoder_that_is_named_is_read_from_a_local_folder(kitchen):
    ours = migrated(kitchen, foreign.NEMO1)
    assert ours["task"]["text_encoder"]["folder"] == "???" and ours["model"]["text_dim"] == 768


@pytest.mark.parametrize(("name", "width"), [("meta-llama/Llama-3.2-1B", 2048), ("meta-llama/Llama-2-70b-hf", 8192)])
def test_without_its_weights_the_name_of_a_published_llama_says_its_sizes(name, width):
    text = foreign.AUTOMODEL_LANGUAGE.replace("some/llm", name).replace(".from_pretrained", ".from_config")
    draft = migrate(text, "x").draft
    assert draft.values["model.width"] == width and "weights.start_from" not in draft.values


def test_an_unknown_key_is_listed_and_never_dropped(kitchen, capsys):
    kitchen.write("theirs.yaml", foreign.AUTOMODEL)
    kitchen.main("migrate", "theirs.yaml")
    (entry,) = [e for e in migrate(foreign.AUTOMODEL, "x").entries if e.key.path == "something.of"]
    assert entry.fate.why == UNKNOWN and "something.of: their own" in capsys.readouterr().out


def test_a_reference_is_followed_and_two_keys_that_disagree_are_told_apart():
    assert fates(foreign.NEMO1)["model.precision"] == "changed"
    entries = {entry.key.path: entry.fate for entry in migrate(foreign.DFM, "x").entries}
    assert entries["train.global_batch_size"].verdict == "carried"
    assert "train.global_batch_size takes precedence" in entries["dataset.global_batch_size"].why


def test_a_secret_is_neither_carried_nor_shown(kitchen, capsys):
    kitchen.write("theirs.yaml", foreign.AUTOMODEL)
    kitchen.main("migrate", "theirs.yaml")
    assert fates(foreign.AUTOMODEL)["wandb.api_key"] == "left"
    assert "abcdef0123456789" not in capsys.readouterr().out + (kitchen.folder / "recipes/theirs.yaml").read_text()


@pytest.mark.parametrize(
    "line", ["private_key: hunter2222", "url: 'https://me:" + "hunter2222@host/x'", "hf_token: hunter2222"]
)
def test_secrets_are_known_by_their_names_and_by_how_they_stand_in_addresses(kitchen, capsys, line):
    (kitchen.folder / "theirs.yaml").write_text(f"{foreign.AUTOMODEL}skypilot:\n  {line}\n")
    assert kitchen.main("migrate", "theirs.yaml") == 0
    assert "hunter2222" not in capsys.readouterr().out + (kitchen.folder / "recipes/theirs.yaml").read_text()


@pytest.mark.parametrize("name", ["*key", "'${wandb.api_key}'", "run-hunter2222"])
def test_a_secret_stays_one_under_another_name(kitchen, capsys, name):
    wandb = f"wandb: {{api_key: &key hunter2222, project: films, name: {name}}}\n"
    (kitchen.folder / "theirs.yaml").write_text(foreign.AUTOMODEL.partition("wandb:")[0] + wandb)
    assert kitchen.main("migrate", "theirs.yaml") == 0
    assert "hunter2222" not in capsys.readouterr().out + (kitchen.folder / "recipes/theirs.yaml").read_text()


def test_a_switch_is_no_secret_and_a_long_list_is_cut_on_the_terminal_only(kitchen, capsys):
    many = "".join(f"  number_{i}: {i}\n" for i in range(50))
    kitchen.write("theirs.yaml", foreign.AUTOMODEL + f"ci:\n{many}  use_end_token: true\n")
    kitchen.main("migrate", "theirs.yaml")
    told, text = capsys.readouterr().out, (kitchen.folder / "recipes/theirs.yaml").read_text()
    assert "31 more, named in the recipe" in " ".join(told.split())
    assert text.count("ci.number_") == 50 and "ci.use_end_token = true" in text


def test_nothing_that_a_file_names_is_imported(kitchen, monkeypatch):
    kitchen.write("canary_of_migration.py", "raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(kitchen.folder)
    text = re.sub(r"_target_: [\w.]+\.(\w+)", r"_target_: canary_of_migration.\1", foreign.NEMO2)
    text = text.replace("optimizer: adam", "optimizer: canary_of_migration.Adam")
    kitchen.write("theirs.yaml", text)
    assert text.count("canary_of_migration") > 10
    assert kitchen.main("migrate", "theirs.yaml", "--from", "nemo2", "--kind", "diffusion") == 0
    assert "canary_of_migration" not in sys.modules


@pytest.mark.parametrize(
    ("text", "value"),
    [("5e-6", 5e-6), ("1_000", 1000), ("1e400", "1e400"), ("010", "010"), ("0.5", 0.5), ("12:30:00", "12:30:00"),
     ("True", True), ("off", False), ("~", None), (".inf", ".inf"), ("1.", 1.0), ("-1", -1)],
)  # fmt: skip
def test_unquoted_texts_mean_what_they_mean_to_those_frameworks(text, value):
    assert scalar_value(text) == value and type(scalar_value(text)) is type(value)


def test_a_file_name_with_a_line_break_does_not_get_into_a_recipe(kitchen, capsys):
    name = "x\n_target_: evil\n#.yaml"
    (kitchen.folder / name).write_text(foreign.DFM)
    assert kitchen.main("migrate", name) == 2
    assert "invisible characters" in capsys.readouterr().err and not (kitchen.folder / "recipes").exists()


def test_line_breaks_in_keys_and_values_do_not_escape_from_the_comments(kitchen):
    evil = '"a\\nrun_dir: /evil": 1\nwandb: {name: "x\\n_target_: evil.Thing\\u2028y: 1", project: "${oc.env:HOME}"}\n'
    before = foreign.AUTOMODEL.partition("wandb:")[0]
    ours = migrated(kitchen, before + evil)
    assert ours["_target_"] == "nemo_vfm.train.job.Train" and ours["run_dir"] == "runs/ours"


@pytest.mark.parametrize("kind", ["diffusion", "language"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.slow
def test_odd_values_at_every_known_key_still_give_a_recipe_that_checks(name, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [pattern.replace("**", "a.b").replace("*", "0") for pattern in FORMATS[name].taken]
    for value in ODD:
        found = _with(dict.fromkeys(paths, value), name, kind)
        assert not [entry for entry in found.entries if entry.fate.why == UNKNOWN]
        (tmp_path / "ours.yaml").write_text(recipe_text(found, "theirs.yaml", "ours.yaml"))
        errors = [problem for problem in check(compose("ours.yaml")) if problem.kind != "missing"]
        assert not errors, f"{value!r}: {errors[0].render()}"


def _with(values: dict[str, object], name: str, kind: str) -> Migration:
    """A file of a format that says these values."""
    root: dict[str, object] = {}
    for path, value in values.items():
        *above, last = path.split(".")
        node = root
        for part in above:
            below = node.setdefault(part, {})
            node = below if isinstance(below, dict) else node
        node.setdefault(last, list(value) if isinstance(value, tuple) else value)
    return migrate(yaml.safe_dump(root), "theirs.yaml", name, kind)


SPEECH = """
trainer: {max_epochs: 5}
model:
  tokenizer: {dir: x}
  encoder: {_target_: nemo.collections.asr.modules.ConvASREncoder}
"""
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("- a\n- b\n", "holds no mapping"),
        ("a: [1, 2\n", "is not valid YAML"),
        ("a: 1\na: 2\n", "given twice"),
        ("a: 1\n---\nb: 2\n", "several YAML documents"),
        ("a: *nothing\n", "refers to nothing"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested more than"),
        (BOMB, "more than 5000 values"),
        ("a: 1\n" + "# " + "x" * (1 << 20), "more than 1048576 characters"),
        ("lr: 1\n", "none of the known formats"),
        ("_target_: nemo_vfm.workflow.Workflow\n", "already a nemo_vfm recipe"),
        ("inference: {height: 512}\nmodel: {x: 1}\n", "copy diffusion/sample"),
        ("trainer: {max_steps: 5}\nmodel: {sample_rate: 16000}\n", "--kind KIND"),
        (SPEECH, "NeMoExperiment takes it"),
    ],
)
def test_a_file_that_cannot_be_migrated_is_a_sentence_and_nothing_is_written(kitchen, capsys, text, words):
    kitchen.write("theirs.yaml", text)
    assert kitchen.main("migrate", "theirs.yaml") == 2
    assert words in capsys.readouterr().err and not (kitchen.folder / "recipes").exists()


def test_a_missing_or_binary_file_is_a_sentence(kitchen, capsys):
    (kitchen.folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert (kitchen.main("migrate", "absent.yaml"), kitchen.main("migrate", "binary.yaml")) == (2, 2)
    told = capsys.readouterr().err
    assert "No such file" in told and "is not UTF-8" in told


def test_a_recipe_that_is_there_is_not_overwritten(kitchen, capsys):
    kitchen.write("theirs.yaml", foreign.DFM)
    mine = kitchen.write("recipes/theirs.yaml", "# mine\n")
    assert kitchen.main("migrate", "theirs.yaml") == 2
    assert "is there already" in capsys.readouterr().err and mine.read_text() == "# mine\n"


@pytest.mark.parametrize("name", foreign.ALL)
def test_a_migrated_recipe_tells_on_top_what_every_recipe_tells(name):
    head = recipe_text(migrate(foreign.ALL[name], name), "theirs.yaml", "recipes/theirs.yaml").split("defaults:")[0]
    assert all(re.search(rf"\b{label}: \S+ \S+", head) for label in ("Hardware", "Time", "Expected"))
    assert "nemo-vfm run recipes/theirs.yaml" in head


@pytest.mark.slow
@settings(max_examples=30)
@given(st.sampled_from(list(foreign.ALL.values())), st.integers(0, 3000), st.text(max_size=8), st.integers(0, 12))
def test_whatever_a_file_holds_the_answer_is_a_recipe_or_a_sentence(text, place, inserted, removed):
    broken = text[:place] + inserted + text[place + removed :]
    try:
        found = migrate(broken, "theirs.yaml")
    except UserError as error:
        assert str(error)
    else:
        assert parse(recipe_text(found, "theirs.yaml", "ours.yaml"), "ours.yaml")


def test_tags_and_fiddles_own_spelling_and_merge_keys_are_read_without_making_anything():
    text = foreign.AUTOMODEL.replace(
        "optimizer: {_target_: torch.optim.AdamW, lr: 2e-5, weight_decay: 0.05, betas: [0.9, 0.95]}",
        "base: &base {lr: 3e-5, weight_decay: 0.2}\n"
        "optimizer: !fdl.Config\n"
        "  <<: *base\n"
        "  __fn_or_cls__: {module: torch.optim, name: AdamW}\n"
        "  weight_decay: 0.1\n"
        "  betas: !!python/tuple [0.8, 0.9]\n",
    )
    values = migrate(text, "x").draft.values
    assert (values["optimizer.lr"], values["optimizer.weight_decay"]) == (3e-5, 0.1)
    assert values["optimizer.betas"] == (0.8, 0.9)


@pytest.mark.parametrize("name", FORMATS)
def test_the_page_names_exactly_the_keys_that_are_looked_for(name):
    page = (ROOT / "docs/how-to/clusters/migrating.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {FORMATS[name].title}\n")[1].split("\n## ")[0]
    told = {
        key
        for row in section.splitlines()
        if row.startswith("| `")
        for key in re.findall("`([^`]+)`", row.split(" | ")[0])
    }
    known = FORMATS[name].taken.keys()
    assert told == (known - FORMATS["automodel"].taken.keys() if name == "dfm" else set(known))


def test_the_example_on_the_page_is_what_is_printed(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    page = (ROOT / "docs/how-to/clusters/migrating.md").read_text(encoding="utf-8")
    given, told = re.search(
        r"```text\n(# films.*?)```.*?```\n\$ nemo-vfm migrate films.yaml\n(.*?)```", page, re.DOTALL
    ).groups()
    kitchen.write("films.yaml", given)
    assert kitchen.main("migrate", "films.yaml") == 0
    assert capsys.readouterr().out == told


@pytest.mark.parametrize(("given", "steps"), [
    ("warmup_steps: 100", 100), ("warmup_steps: 0", 0), ("warmup_ratio: 0.02", 60), ("warmup_ratio: 0", 0),
    ("warmup_steps: 7, warmup_ratio: 0.5", 7), ("warmup_steps: null, warmup_ratio: 0.02", 60),
    ("constant_steps: 0", 0),
])  # fmt: skip
def test_a_warm_up_is_as_many_steps_whichever_way_it_is_written(kitchen, given, steps):
    """Of a run of 3,000 steps; a share is of these."""
    ours = migrated(kitchen, foreign.NEMO1_GPT.replace("warmup_steps: 100, constant_steps: 0", given))
    assert (ours["loop"]["duration"], ours["schedule"].get("warmup_steps", 0)) == ("3000 steps", steps)


WAN = """
model: {pretrained_model_name_or_path: Wan-AI/Wan2.1-T2V-1.3B-Diffusers, model_type: wan, mode: finetune}
optimizer: {_target_: torch.optim.AdamW, lr: 1e-2, weight_decay: 0.01, betas: [0.9, 0.98]}
flow_matching: {adapter_type: simple, timestep_sampling: logit_normal, flow_shift: 3.0, i2v_prob: 0.0}
step_scheduler: {global_batch_size: 2, local_batch_size: 2, ckpt_every_steps: 50, max_steps: 2}
data: {dataloader: {cache_dir: CACHE, base_resolution: [480, 832]}}
checkpoint: {enabled: true, checkpoint_dir: OUT}
"""
LORA = "peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 4, alpha: 8, target_modules: [%s]}\n"
TINY_WAN = {"num_attention_heads": 2, "attention_head_dim": 24, "in_channels": 4, "out_channels": 4, "text_dim": 16,
            "freq_dim": 32, "ffn_dim": 96, "num_layers": 2}  # fmt: skip


def latent_batch(index: int) -> VideoBatch:
    random = torch.Generator().manual_seed(index)
    return VideoBatch(
        index, ("a", "b"), torch.ones(2), ("", ""), torch.full((2,), 8.0),
        latents_BCTHW=torch.randn(2, 4, 2, 4, 6, generator=random),
        text_BLD=torch.randn(2, 5, 16, generator=random), text_mask_BL=torch.ones(2, 5, dtype=torch.bool),
    )  # fmt: skip


def trained_here(job: object, batches: list) -> tuple[list[float], torch.nn.Module]:
    """The loss of each step, and the adapters' first matrices."""
    runner = job.engine.start(EngineInputs(job.model, job.task, job.optimizer, Precision("fp32"), 0))
    job.weights.start_from.load_into(runner.model)
    first = {name: one.detach().clone() for name, one in runner.model.named_parameters() if name.endswith("_a")}
    return [runner.step([batch]).loss for batch in batches], first


def steps_by_hand(model: torch.nn.Module, loss_of: object, count: int) -> list[float]:
    """AdamW of a migrated file and a clipped norm, in plain PyTorch."""
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.01, betas=(0.9, 0.98))
    losses = []
    for index in range(count):
        loss = loss_of(index)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow  # imports diffusers and peft
@pytest.mark.parametrize(("targets", "same"), [
    ('"*.to_q", "*.to_k"', r"\.to_[qk]$"), ("", ""),
    ('"*.ffn.net.0.proj", "*.attn1.to_out.0", "blocks.1.attn2.to_v"',
     r"ffn\.net\.0\.proj$|attn1\.to_out\.0$|blocks\.1\.attn2\.to_v$"),
])  # fmt: skip
def test_a_migrated_wan_has_the_losses_of_diffusers_and_peft(kitchen, targets, same):
    diffusers, peft = pytest.importorskip("diffusers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    theirs = diffusers.WanTransformer3DModel(**TINY_WAN)
    theirs.save_pretrained("base")
    theirs.requires_grad_(not targets)
    kitchen.write("theirs.yaml", WAN + (LORA % targets if targets else ""))
    assert kitchen.main("migrate", "theirs.yaml", "-o", "ours.yaml") == 0
    given = ["base=base", "data.buckets.buckets.all.num_frames=5"]
    job = build(compose("ours.yaml", given))
    batches = [latent_batch(index) for index in range(2)]
    losses, first = trained_here(job, batches)
    if targets:
        chosen = [name for name, _ in theirs.named_modules() if re.search(same, name)]
        theirs.add_adapter(peft.LoraConfig(r=4, lora_alpha=8, target_modules=chosen))
        matrices = {name: one for name, one in theirs.named_parameters() if "lora_A" in name}
        assert len(matrices) == len(first)
        for name, one in matrices.items():
            one.data.copy_(first[ours_of(name)])

    def loss_of(index: int) -> torch.Tensor:
        prepared = job.task.prepare(batches[index], seed=0, training=True)
        inputs, targets = prepared.tensors(), prepared.targets
        output = theirs(hidden_states=inputs["latents_BCTHW"], timestep=targets["sigma"] * 1000,
                        encoder_hidden_states=inputs["text_BLD"], return_dict=False)[0]  # fmt: skip
        error = (output - (targets["noise"] - targets["clean"])).square().flatten(1).mean(1)
        return ((1 + 3.0 * targets["sigma"]) * error).mean()

    assert losses == pytest.approx(steps_by_hand(theirs, loss_of, 2), rel=1e-4)
    assert losses[0] != losses[1]


def ours_of(name: str) -> str:
    """Our name of a matrix A of PEFT's."""
    _, block, inside = name.split(".lora_A")[0].split(".", 2)
    linear, part = {
        "attn1.to_q": ("self_attention.qkv", "q"), "attn1.to_k": ("self_attention.qkv", "k"),
        "attn2.to_q": ("cross_attention.q", "whole"), "attn2.to_k": ("cross_attention.kv", "k"),
        "attn2.to_v": ("cross_attention.kv", "v"), "attn1.to_out.0": ("self_attention.out", "whole"),
        "ffn.net.0.proj": ("mlp.up", "whole"),
    }[inside]  # fmt: skip
    return f"blocks.{block}.{linear}.adapters.own.{part}_a"


LLAMA = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path: ./base}
dataset: {_target_: nemo_automodel.components.datasets.llm.nanogpt_dataset.NanogptDataset, paths: texts, seq_length: 6}
step_scheduler: {global_batch_size: 2, max_steps: 2}
optimizer: {_target_: torch.optim.AdamW, lr: 1e-2, weight_decay: 0.01, betas: [0.9, 0.98]}
"""


@pytest.mark.slow  # imports transformers and peft
def test_a_migrated_llama_has_the_losses_of_transformers_and_peft(kitchen):
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    ))  # fmt: skip
    theirs.save_pretrained("base")
    kitchen.write("theirs.yaml", LLAMA + LORA % '"*.q_proj", "*.v_proj", "*.o_proj", "*.mlp.*_proj"')
    assert kitchen.main("migrate", "theirs.yaml", "-o", "ours.yaml") == 0
    job = build(compose("ours.yaml"))
    tokens = torch.randint(0, 32, (2, 2, 7), generator=torch.Generator().manual_seed(1))
    batches = [
        TokenBatch(index, ("a", "b"), torch.ones(2), one[:, :-1], one[:, 1:]) for index, one in enumerate(tokens)
    ]
    losses, first = trained_here(job, batches)
    theirs.requires_grad_(False)
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    ))  # fmt: skip
    ours = {"q_proj": "attention.qkv q", "v_proj": "attention.qkv v", "o_proj": "attention.out whole",
            "gate_proj": "mlp.gate whole", "up_proj": "mlp.up whole", "down_proj": "mlp.down whole"}  # fmt: skip
    for name, one in adapted.named_parameters():
        if "lora_A" in name:
            block, linear = re.search(r"layers\.(\d+)\.\w+\.(\w+)\.", name).groups()
            place, part = ours[linear].split()
            one.data.copy_(first.pop(f"blocks.{block}.{place}.adapters.own.{part}_a"))
    assert not first

    def loss_of(index: int) -> torch.Tensor:
        scores = adapted(input_ids=batches[index].tokens_BS).logits
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), batches[index].labels_BS.flatten())

    assert losses == pytest.approx(steps_by_hand(adapted, loss_of, 2), rel=1e-4)


@pytest.mark.parametrize(("stage", "network", "range_"), [
    ("high_noise", "transformer", [0.875, 1.0]), ("low_noise", "transformer_2", [0.0, 0.875]),
])  # fmt: skip
def test_a_stage_of_two_networks_is_the_network_and_the_noise_levels_that_it_sees(kitchen, stage, network, range_):
    ours = migrated(
        kitchen, WAN.replace("Wan2.1-T2V-1.3B", "Wan2.2-T2V-A14B").replace("mode:", f"stage: {stage}, mode:")
    )
    base = "models/Wan2.2-T2V-A14B-Diffusers"
    assert ours["model"]["folder"] == ours["weights"]["start_from"] == f"{base}/{network}"
    assert ours["task"]["objective"]["drawn"] == range_
    other = WAN.replace("Wan2.1-T2V-1.3B", "Wan2.2-I2V-A14B").replace(
        "mode:", f"stage: {stage}, boundary_ratio: x, mode:"
    )
    draft = migrate(other, "theirs.yaml").draft
    assert draft.values["task.objective.drawn"] == tuple(0.9 if end == 0.875 else end for end in range_)
    assert draft.fates["boundary"].verdict == "left" and "clamps" in draft.differences[0]


@pytest.mark.parametrize(("name", "pipeline"), [
    ("Wan-AI/Wan2.1-T2V-14B-Diffusers", "wan21_t2v"), ("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "wan21_i2v"),
    ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "wan22_t2v"), ("Wan-AI/Wan2.2-I2V-A14B-Diffusers", "wan22_i2v"),
    ("Wan-AI/Wan2.2-TI2V-5B-Diffusers", "wan22_ti2v"), ("nvidia/Cosmos-1.0-Diffusion-7B-Text2World", "cosmos1_text"),
    ("nvidia/Cosmos-1.0-Diffusion-7B-Video2World", "cosmos1_video"),
    ("nvidia/Cosmos-Predict2-2B-Text2Image", "cosmos2_image"),
    ("nvidia/Cosmos-Predict2-2B-Video2World", "cosmos2_video"),
    ("nvidia/Cosmos-Predict2.5-2B", "cosmos25"), ("Wan-AI/Wan2.1-VACE-14B-diffusers", ""), ("my/taiwanese", ""),
    ("black-forest-labs/FLUX.1-dev", ""),
])  # fmt: skip
def test_a_published_model_is_known_by_its_name_and_its_recipe_and_the_command_for_its_shards_check(
    kitchen, name, pipeline
):
    text = WAN.replace("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", name).replace("model_type: wan, ", "") + LORA % '"*.to_q"'
    draft = migrate(text, "theirs.yaml").draft
    assert pipeline_of(draft) == pipeline
    assert bool(draft.differences) == (not pipeline)
    ours = migrated(kitchen, text)
    if pipeline:
        assert (
            ours["weights"]["start_from"] == f"models/{name.partition('/')[2]}"
            and ours["weights"]["adapters"]["targets"]
        )
    written = draft.notes["data.shards"]
    if command := re.search(r"curation/encode buckets=\.\.\. (.*) writes it", written):
        words = ["shards=clips", *command[1].split()]
        assert [one.kind for one in check(compose("curation/encode", words))] == []


def test_without_pretrained_weights_there_a_published_model_starts_from_the_seed(kitchen):
    ours = migrated(kitchen, WAN.replace("mode: finetune", "mode: pretrain"))
    assert "weights" not in ours and ours["model"]["_target_"].endswith("pretrained_video_model")


@pytest.mark.parametrize(("name", "more"), [
    ("AUTOMODEL_LANGUAGE", ""), ("NEMO1", ""), ("NEMO2", ""), ("DFM", ""),
    ("NEMO2_LANGUAGE", "peft: {_target_: nemo.collections.llm.peft.lora.LoRA, dim: 16}"),
    ("NEMO2_LANGUAGE", "resume: {restore_config: {path: weights}}"),
    ("NEMO1_GPT", "restore_from_path: gpt.nemo"),
])  # fmt: skip
def test_what_makes_it_another_training_is_said_before_all_else(kitchen, capsys, name, more):
    text = getattr(foreign, name).replace("restore_from_path: null", "") + more
    kitchen.write("theirs.yaml", text)
    assert kitchen.main("migrate", "theirs.yaml", "-o", "ours.yaml") == 0
    told, head = capsys.readouterr().out, (kitchen.folder / "ours.yaml").read_text().partition("defaults:")[0]
    assert told.split("\n\n")[1].startswith("Differs from the original\n")
    assert "trains something else" in told.rpartition("\n\n")[2] and "Differs from the original" in head


def test_the_same_training_is_called_no_other_one():
    for text in (WAN, WAN + LORA % '"*.to_q"', LLAMA + LORA % '"*.o_proj"', foreign.NEMO1_GPT):
        assert not migrate(text, "theirs.yaml").draft.differences


def test_adapters_of_all_linears_are_of_what_is_a_linear_there():
    text = WAN + "peft: {_target_: PeftConfig, match_all_linear: true, dim: 4, alpha: 8}\n"
    values = migrate(text, "theirs.yaml").draft.values
    modules = {value for address, value in values.items() if address.endswith(".modules")}
    assert {"out", "text_projection.up", "blocks.*.mlp.up"} < modules and "patch_embedding.proj" not in modules
    excluded = WAN + 'peft: {_target_: PeftConfig, exclude_modules: ["*.attn1.*", "blocks.0.ffn.*"]}\n'
    draft = migrate(excluded, "theirs.yaml").draft
    assert "blocks.*.self_attention.qkv" not in draft.values.values() and "single blocks" in draft.differences[0]


def test_compiling_and_given_frames_are_carried_over():
    i2v = WAN.replace("T2V-1.3B", "I2V-14B-480P").replace("i2v_prob: 0.0", "i2v_prob: 0.3")
    values = migrate(i2v + "compile: {enabled: true}\n", "theirs.yaml").draft.values
    assert values["engine.compile"] is True and values["task.frame_conditioning.none_given"] == 0.7


def takes(component: object, *words: str) -> bool:
    """Whether an argument's name holds one of these words."""
    return any(word in name for name in inspect.signature(component).parameters for word in words)


def refuses(make: object) -> bool:
    try:
        make()
    except ValueError:
        return True
    return False


LANGUAGE = {"Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe", "Nemotron", "Phi3", "Gemma3"}
#: Words of a reason that deny an ability -> whether the code lacks it indeed.
LACKS = {
    "not quantised": lambda: not takes(LowRankAdapter, "quant", "bits"),
    "adapters have no dropout": lambda: not takes(LowRankAdapter, "dropout") and not takes(AdapterTarget, "dropout"),
    "blocks have no": lambda: not takes(GPT, "dropout", "add_bias"),
    "no second dataset": lambda: not takes(ShardData, "validation") and not takes(TokenData, "validation"),
    "text encoders are not trained": lambda: not issubclass(TransformersTextEncoder, torch.nn.Module),
    "no other video or image model": lambda: {one.partition("Tr")[0] for one in VIDEO_FAMILIES} == {"Cosmos", "Wan"},
    "no other language model": lambda: {one.removesuffix("ForCausalLM") for one in FAMILIES} == LANGUAGE,
    "no training on chats": lambda: not takes(TokenData, "chat", "messages", "answers"),
    "no objective here predicts noise": lambda: refuses(lambda: FlowMatching(prediction="noise")),
    "weights are linear or absent": lambda: not takes(FlowMatching, "weighting", "scheme"),
    "does not exist here, so the loss": lambda: not takes(FlowMatching, "weighting", "scheme"),
    "logit-normal or uniform": lambda: not takes(FlowMatching, "mode", "beta", "sampling"),
    "distribution of noise levels does not": lambda: not takes(FlowMatching, "mode", "beta", "sampling"),
    "constant or a cosine": lambda: {one.stem for one in (ROOT / "conf/schedule").iterdir()} == {"constant", "cosine"},
    "bf16 or fp32": lambda: set(typing.get_args(PrecisionName)) == {"bf16", "fp32", "auto"},
    "without --trust": lambda: "torch.optim.Adagrad" not in DEFAULT_TRUST,
    ".idx are not read": lambda: not [one for one in (ROOT / "nemo_vfm/data/tokens").rglob("*.py")
                                              if ".idx" in one.read_text()],
    "no such number": lambda: not takes(FlowMatching, "linear", "betas"),
    "there is no such ": lambda: (typing.get_args(NormKind), typing.get_args(Activation)) == (
        ("layernorm1p", "rmsnorm", "rmsnorm1p"), ("squared_relu", "swiglu", "geglu", "gelu")),
}  # fmt: skip
DENIES = re.compile(
    "not supported|not quantised|have no|no second|are not trained|no other|no training on|not exist here|"
    r"no objective|(?:absent|uniform) here|constant or a cosine|bf16 or|\w --trust|not read$|no such"
)


@functools.cache
def reasons() -> list[str]:
    """Every text of `migrate` that says what is not there."""
    trees = [ast.parse(file.read_text()) for file in (ROOT / "nemo_vfm/cli/migrate").glob("*.py")]
    assert trees
    kinds = ast.Module | ast.FunctionDef | ast.ClassDef
    docs = {
        ast.get_docstring(node, clean=False) for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)
    }
    texts = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [one for one in texts if isinstance(one, str) and one not in docs and DENIES.search(one)]


@pytest.mark.slow
def test_every_reason_that_denies_an_ability_is_true_of_the_code():
    for reason in reasons():
        assert [words for words in LACKS if words in reason], f"no check stands behind: {reason}"
    for words, lacks in LACKS.items():
        assert any(words in reason for reason in reasons()), f"nobody says: {words}"
        assert lacks(), f"it is there: {words}"
