"""Tests that `nemo-vfm convert` turns foreign files into a folder of safetensors and JSON, whole or not at all."""

import inspect
import json
import os
import re
import resource
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nemo_vfm.cli.conversion import convert_child
from nemo_vfm.cli.verbs import convert
from nemo_vfm.core import process
from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.models.convert.video.pretrained_video import pretrained_video_model
from nemo_vfm.train.warm_start import WarmStart
from tests.support import preloaded
from tests.support.dcp_files import made
from tests.support.foreign_files import CONFIG, Touch, nemo, saved

STATE = {"w": torch.arange(6.0).reshape(2, 3), "tied": torch.ones(2).to(torch.bfloat16)}


@pytest.fixture
def forked(monkeypatch):
    """Let the process that reads be a copy of one that has imported torch already; the first tests start it afresh."""

    def run(module, words, *, env, timeout_s):
        code = f"import sys; from {module} import main; sys.exit(main())"
        return preloaded.run([sys.executable, "-c", code, *words], env=env, timeout=timeout_s, cwd=Path.cwd())

    monkeypatch.setattr(process, "run_module", run)


@pytest.mark.slow
def test_an_archive_becomes_a_folder_of_safetensors_and_json(kitchen, capfd):
    archive = nemo({"model_config.yaml": CONFIG.encode(), "model_weights.ckpt": saved(STATE), "a.model": b"x"})
    (kitchen.folder / "a.nemo").write_bytes(archive)
    assert kitchen.main("convert", "a.nemo", "out") == 0
    assert capfd.readouterr().out == "2 tensors, 8 numbers; not carried over: a.model\nout\n"
    out = kitchen.folder / "out"
    weights = load_file(out / "model.safetensors")
    assert all(torch.equal(weights[name], tensor) for name, tensor in STATE.items())
    assert json.loads((out / "config.json").read_text())["encoder"] == {"_target_": "os.system", "d_model": 8}
    about = json.loads((out / "convert.json").read_text())
    assert about["model_sha256"] == sha256_file(out / "model.safetensors")
    assert about["source"]["sha256"] == sha256_file(kitchen.folder / "a.nemo")
    assert sorted(path.name for path in kitchen.folder.iterdir()) == ["a.nemo", "out"]


def test_a_hostile_file_leaves_a_sentence_and_nothing_else(kitchen, capfd):
    canary = kitchen.folder / "canary"
    kitchen.write("torch.py", f"open({str(canary)!r}, 'w')")
    (kitchen.folder / "evil.ckpt").write_bytes(saved({"state_dict": {"w": torch.ones(1)}, "x": Touch(canary)}))
    assert kitchen.main("convert", "evil.ckpt", "out") == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "evil.ckpt: its pickle names posix.system, which is code" in said
    assert sorted(path.name for path in kitchen.folder.iterdir()) == ["evil.ckpt", "torch.py"]


@pytest.mark.parametrize(
    ("weights", "words"),
    [({"w": torch.zeros(2, dtype=torch.complex128)}, "complex128"), ({"w\ud800": torch.zeros(2)}, "surrogates")],
    ids=["dtype", "name"],
)
@pytest.mark.slow
def test_what_safetensors_cannot_hold_is_a_sentence(kitchen, capfd, forked, weights, words):
    (kitchen.folder / "odd.pt").write_bytes(saved(weights))
    assert kitchen.main("convert", "odd.pt", "out") == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "safetensors and JSON cannot hold" in said and words in said
    assert [path.name for path in kitchen.folder.iterdir()] == ["odd.pt"]


def test_nothing_is_overwritten_and_no_link_is_followed(kitchen, capfd):
    (kitchen.folder / "a.pt").write_bytes(saved(STATE))
    (kitchen.folder / "out").symlink_to("elsewhere")
    assert kitchen.main("convert", "a.pt", "out") == 2
    assert kitchen.main("convert", "b.pt", "new") == 2
    said = capfd.readouterr().err
    assert "out already exists and is never overwritten" in said and "there is no file b.pt" in said


def test_a_child_gets_named_variables_alone_and_its_end_by_a_limit_is_a_sentence(kitchen, capfd, monkeypatch):
    seen = kitchen.folder / "seen"
    stub = kitchen.write("bin/python", f"#!/bin/sh\nenv > {seen}\nkill -XCPU $$\nexec {sys.executable}\n")
    stub.chmod(0o755)
    (kitchen.folder / "a.pt").write_bytes(saved(STATE))
    monkeypatch.setattr(sys, "executable", str(stub))
    monkeypatch.setenv("SOME_API_KEY", "secret-value")
    assert kitchen.main("convert", "a.pt", "out") == 1
    assert "was killed by SIGXCPU: the file asks for more time or memory" in capfd.readouterr().err
    assert not (kitchen.folder / "out").exists()
    assert "secret-value" not in seen.read_text() and "PATH=" in seen.read_text()


@pytest.mark.parametrize(("before", "after"), [(1 << 40, 69 << 20), (1000, 1000)])
def test_the_process_that_reads_is_limited_and_limits_only_ever_shrink(before, after):
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, before))
        convert_child.limit(1 << 20)
        kinds = resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE
        well = [resource.getrlimit(kind)[1] for kind in kinds] == [(4 << 30) + (12 << 20), 120, after]
        with suppress(MemoryError):
            well = not bytearray(8 << 30)
        os._exit(0 if well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.slow
def test_one_tensor_is_not_tensors_and_a_file_is_called_as_the_user_called_it(kitchen, capfd, forked):
    (kitchen.folder / "one.pt").write_bytes(saved({"w": torch.ones(3)}))
    (kitchen.folder / "-odd.pt").write_bytes(b"no weights")
    assert kitchen.main("convert", "one.pt", "one") == 0
    assert capfd.readouterr().out.startswith("1 tensor, 3 numbers")
    assert kitchen.main("convert", "./-odd.pt", "odd") == 1
    assert capfd.readouterr().err.startswith("-odd.pt: this is neither")


def test_a_checkpoint_of_ours_becomes_one_file_and_nothing_is_overwritten(kitchen, capfd):
    from nemo_vfm.parallel.checkpoint import checkpoint

    weights = {"w": torch.arange(4.0)}
    checkpoint.save(kitchen.folder / "run/checkpoints", 7, {"model": weights, "ema": {"w": weights["w"] * 2}}, {})
    assert kitchen.main("convert", "run", "out") == 0
    said = capfd.readouterr().out
    assert said == "the ema weights of step 7: 1 tensors, 4 numbers; not carried over: model\nout\n"
    assert load_file(kitchen.folder / "out/model.safetensors")["w"].tolist() == [0, 2, 4, 6]
    assert kitchen.main("convert", "run", "out") == 2
    assert kitchen.main("convert", "run", "own", "--key", "model") == 0
    assert load_file(kitchen.folder / "own/model.safetensors")["w"].tolist() == [0, 1, 2, 3]
    assert kitchen.main("convert", "run", "more", "--key", "optimizer") == 2
    assert "holds no optimizer weights; it has ema, model" in capfd.readouterr().err
    assert sorted(path.name for path in kitchen.folder.iterdir()) == ["out", "own", "run"]


@pytest.mark.slow
def test_a_distributed_checkpoint_becomes_one_file_and_the_rest_is_named(kitchen, capfd, forked):
    state = {"module.a": torch.ones(2, 3), "module.b": torch.randn(4), "optimizer.exp_avg.a": torch.zeros(2, 3)}
    folder = made(state, (2,), {"step": b"x"}).write(kitchen.folder / "ckpt/weights").parent
    assert kitchen.main("convert", "ckpt", "out") == 0
    assert capfd.readouterr().out == "2 tensors, 10 numbers; not carried over: optimizer.exp_avg.a, step\nout\n"
    assert torch.equal(load_file(kitchen.folder / "out/model.safetensors")["module.b"], state["module.b"])
    about = json.loads((kitchen.folder / "out/convert.json").read_text())
    assert about["not_carried_over"] == ["optimizer.exp_avg.a", "step"] and about["source"]["format"] == "distcp"

    # What the process that is started here does, in this one: each start takes seconds.
    (kitchen.folder / "below").mkdir()
    convert_child.convert(folder, kitchen.folder / "below", key="module", leave_out=False)
    assert torch.equal(load_file(kitchen.folder / "below/model.safetensors")["b"], state["module.b"])
    for given, said in (({"key": "ema"}, "no weights below ema; it has module, optimizer"),
                        ({"key": None, "stretch": (1, 1, 1)}, "--rope-scale is for a Cosmos")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            convert_child.convert(folder, kitchen.folder / "below", leave_out=False, **given)


def test_zarr_is_refused_by_its_name(kitchen):
    (kitchen.folder / "old/model.a").mkdir(parents=True)
    (kitchen.folder / "old/model.a/.zarray").write_text("{}")
    with pytest.raises(DataError, match="in its former format, zarr, which is not read"):
        convert_child.convert(kitchen.folder / "old", kitchen.folder, key=None, leave_out=False)


CONVERSIONS = {
    "adapter": (["--adapter", "peft", "--base", "b", "--alpha", "7"], "adapter.convert_adapter",
                {"style": "peft", "base": Path("b"), "alpha": 7.0}),
    "transformers": (["--to", "transformers", "--tokenizer", "t", "--max-tokens", "7", "--dtype", "bf16"],
                     "language_model.convert_out", {"tokenizer": Path("t"), "max_tokens": 7, "dtype": "bf16"}),
    "merged": (["--to", "transformers", "--base", "b", "--alpha", "7", "--dtype", "bf16"], "adapter.merge_adapter",
               {"base": Path("b"), "alpha": 7.0, "dtype": "bf16"}),
    "diffusers": (["--to", "diffusers", "--pipeline", "p", "--replaces", "transformer_2", "--dtype", "fp32"],
                  "video_model.convert_out", {"to": "diffusers", "pipeline": Path("p"), "replaces": "transformer_2",
                                              "dtype": "fp32"}),
    "native": (["--to", "native"], "video_model.convert_out", {"to": "native"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_every_option_of_a_conversion_reaches_it(kitchen, monkeypatch, kind):
    words, place, expected = CONVERSIONS[kind]
    (kitchen.folder / "run").mkdir()
    module, _, name = place.partition(".")
    signature = inspect.signature(getattr(import_module(f"nemo_vfm.cli.conversion.{module}"), name))
    given = {}

    def spy(*args, **kwargs):
        given.update(signature.bind(*args, **kwargs).arguments)
        return "done"

    monkeypatch.setattr(f"nemo_vfm.cli.conversion.{place}", spy)
    shared = [] if kind == "merged" else ["--key", "model", "--trust", "mine", "--allow-host", "h"]
    assert kitchen.main("convert", "run", "out", *words, *shared) == 0
    assert given.pop("target").name.startswith(".out.") and given.pop("source") == Path("run")
    passed = {name: value for name, value in given.items() if value is not None}
    assert passed == expected | ({"key": "model", "trust": ["mine"], "allow_host": ["h"]} if shared else {})


def test_every_option_for_a_foreign_file_reaches_the_process_that_reads_it(kitchen, monkeypatch):
    (kitchen.folder / "a.pt").write_bytes(b"")
    found = {}
    monkeypatch.setattr(convert_child, "limit", lambda size: None)
    monkeypatch.setattr(convert_child, "convert", lambda *places, **options: found.update(options) or "done")

    def child(source: Path, words: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", ["convert_child", *words])
        return str(convert_child.main())

    monkeypatch.setattr(convert, "_child", child)
    assert kitchen.main("convert", "a.pt", "plain") == 0
    assert found == {"key": None, "leave_out": False, "stretch": None, "heads": None}
    words = ("--key=-ema", "--leave-out", "--rope-scale", "1,2,3", "--heads", "12")
    assert kitchen.main("convert", "a.pt", "out", *words) == 0
    assert found == {"key": "-ema", "leave_out": True, "stretch": [1.0, 2.0, 3.0], "heads": 12}


#: Files of a folder of another library, and what its sentence names.
THEIRS = {
    "gpt2": ({"config.json": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}},
             ["model of transformers, GPT2LMHeadModel", "transformers loads it"]),
    "gemma": ({"config.json": {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}},
              ["Gemma2ForCausalLM", "transformers loads"]),
    "flux": ({"model_index.json": {"_class_name": "FluxPipeline"},
              "transformer/config.json": {"_class_name": "FluxTransformer2DModel"}},
             ["pipeline of diffusers, FluxPipeline with a FluxTransformer2DModel", "diffusers.FluxPipeline loads it"]),
    "vae": ({"config.json": {"_class_name": "AutoencoderKLWan"}}, ["AutoencoderKLWan", "task.codec.folder takes it"]),
    "t5": ({"config.json": {"architectures": ["UMT5EncoderModel"]}}, ["UMT5EncoderModel", "task.text_encoder.folder"]),
    "adapter": ({"adapter_config.json": {"peft_type": "LORA"}}, ["an adapter of PEFT", "--adapter ours --base DIR"]),
}  # fmt: skip


@pytest.mark.parametrize("name", THEIRS)
def test_a_folder_of_another_library_is_named_as_what_it_is_wherever_it_is_given(kitchen, capsys, name):
    files, words = THEIRS[name]
    for path, content in files.items():
        kitchen.write(f"theirs/{path}", json.dumps(content))
    kitchen.write("theirs/model.safetensors", "")
    for given in (["convert", "theirs", "out"], ["convert", "theirs", "out", "--to", "diffusers"], ["serve", "theirs"]):
        assert kitchen.main(*given) != 0
        told = capsys.readouterr().err
        assert all(word in told for word in words) and re.search("Llama.*Mistral.*Qwen3.*Nemotron", told), told
        assert "Train first" not in told and "None" not in told
    folder = kitchen.folder / "theirs"
    for use in (lambda: WarmStart(path=folder).load_into(torch.nn.Linear(1, 1)),
                lambda: pretrained_video_model(folder=folder)):  # fmt: skip
        with pytest.raises(NemoVfmError, match=re.escape(words[0])):
            use()
