"""Tests that recipes that try to run code are refused, with a canary that must not appear."""

import inspect
import json
import re

import pytest

import nemo_vfm
from nemo_vfm.asking.journal import Journal, OpenJournal
from nemo_vfm.config import DEFAULT_TRUST, RecipeError, build, check, compose, trust_list
from nemo_vfm.config.locate import NotLocated, is_trusted, locate
from tests.support.recipe_folder import PARTS, TRUST

#: Names of things that run code, under their own names and under the names of modules that imported them.
TARGETS = ("os.system", "posix.system", "builtins.eval", "builtins.exec", "builtins.__import__", "builtins.compile",
    "builtins.open", "builtins.getattr", "builtins.setattr", "builtins.type", "builtins.globals", "builtins.breakpoint",
    "logging.os.system", "importlib.import_module", "importlib.reload", "importlib.util.spec_from_file_location",
    "importlib.machinery.SourceFileLoader", "pkgutil.resolve_name", "functools.partial", "functools.reduce",
    "functools.partialmethod", "operator.attrgetter", "operator.methodcaller", "itertools.starmap",
    "types.FunctionType", "types.CodeType", "types.MethodType", "subprocess.run", "subprocess.Popen",
    "subprocess.check_output", "subprocess.getoutput", "os.popen", "os.execv", "os.spawnl", "os.fork", "os.kill",
    "os.remove", "os.unlink", "os.putenv", "os.environ.update", "os.symlink", "runpy.run_path", "runpy.run_module",
    "shutil.rmtree", "shutil.copy", "shutil.unpack_archive", "pathlib.Path", "pathlib.Path.write_text", "io.open",
    "pty.spawn", "pickle.loads", "pickle.load", "pickle.Unpickler", "_pickle.loads", "marshal.loads", "shelve.open",
    "dill.loads", "joblib.load", "cloudpickle.loads", "yaml.load", "yaml.unsafe_load", "tarfile.open",
    "zipfile.ZipFile", "sqlite3.connect", "ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary",
    "ctypes.util.find_library", "cffi.FFI", "numpy.load", "numpy.save", "numpy.memmap", "numpy.ctypeslib.load_library",
    "numpy.f2py.compile", "numpy.distutils.exec_command", "torch.load", "torch.save", "torch.hub.load",
    "torch.jit.load", "torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline", "torch.os.system",
    "torch.ctypes.CDLL", "torch.serialization.load", "torch.classes.load_library", "torch.ops.load_library",
    "torch.package.PackageImporter", "torch.distributed.rpc.init_rpc", "torch.multiprocessing.spawn",
    "torch.utils.data.DataLoader", "torch.utils.collect_env.run", "torch.optim.os.system", "torch.optim.Adam.load",
    "torch.optim.adamw.AdamW", "torch.optim.Adam.__init__", "torch.optim.Optimizer.load_state_dict",
    "torch.optim.lr_scheduler.partial", "torch.fx.graph_module.GraphModule", "torch._dynamo.config.load_config",
    "lightning.pytorch.callbacks.LambdaCallback", "lightning.pytorch.callbacks.ModelCheckpoint",
    "lightning.pytorch.loggers.CSVLogger", "lightning.pytorch.loggers.TensorBoardLogger",
    "lightning.pytorch.loggers.WandbLogger", "lightning.pytorch.Trainer", "lightning.pytorch.callbacks.os.system",
    "code.interact", "code.InteractiveInterpreter", "pdb.run", "pdb.set_trace", "pdb.Pdb", "bdb.Bdb", "timeit.timeit",
    "cProfile.run", "profile.run", "trace.Trace", "doctest.testfile", "unittest.main", "webbrowser.open",
    "http.server.HTTPServer", "http.client.HTTPConnection", "socketserver.TCPServer", "socket.create_connection",
    "socket.socket", "urllib.request.urlopen", "urllib.request.urlretrieve", "ftplib.FTP", "smtplib.SMTP",
    "telnetlib.Telnet", "xmlrpc.client.ServerProxy", "requests.get", "httpx.get", "multiprocessing.Process",
    "multiprocessing.Pool", "multiprocessing.managers.BaseManager", "multiprocessing.util.os.system",
    "concurrent.futures.ProcessPoolExecutor", "asyncio.create_subprocess_shell", "asyncio.run", "threading.Thread",
    "logging.config.dictConfig", "logging.FileHandler", "logging.handlers.SocketHandler", "tempfile.mkdtemp",
    "venv.create", "ensurepip.bootstrap", "pip.main", "site.addsitedir", "sys.exit", "sys.modules", "signal.alarm",
    "atexit.register", "gc.get_objects", "inspect.getattr_static", "weakref.finalize", "antigravity.geohash",
    "hydra.utils.instantiate", "hydra._internal.utils._locate", "omegaconf.OmegaConf.register_new_resolver",
    "nemo.core.config.hydra_runner", "fsspec.open", "pandas.read_pickle", "jinja2.Template", "mlflow.start_run",
    "wandb.init", "pydantic.v1.utils.import_string", "pydantic.ImportString", "setuptools.setup",
    # ours, under every kind of name that is not a class made for recipes
    "nemo_vfm.core.storage.files.os.system", "nemo_vfm.core.storage.files.hashlib.sha256",
    "nemo_vfm.core.storage.files.write_text",
    "nemo_vfm.core.storage.files.write_bytes", "nemo_vfm.core.storage.files.atomic_path",
    "nemo_vfm.core.storage.files.read_json",
    "nemo_vfm.core.optional.require", "nemo_vfm.core.optional.find_spec", "nemo_vfm.core.duration.re.compile",
    "nemo_vfm.core.duration.Duration.parse", "nemo_vfm.core.types.job.dataclass", "nemo_vfm.core.types.job.Path",
    "nemo_vfm.core.types.job.Run", "nemo_vfm.core.types.job.Run.step", "nemo_vfm.config.locate.importlib.import_module",
    "nemo_vfm.config.locate.locate", "nemo_vfm.config.build.make", "nemo_vfm.config.build.BoundFactory",
    "nemo_vfm.config.compose.compose", "nemo_vfm.config.compose.ComposedRecipe.run_dir", "nemo_vfm.config.compose.Path",
    "nemo_vfm.config.emit.NOWHERE", "nemo_vfm.config.yaml_source.yaml.load", "nemo_vfm.config.values.TypeAdapter",
    "nemo_vfm.cli.main.main", "nemo_vfm.cli.main.traceback.print_exc", "nemo_vfm.cli.verbs.run.run",
    "nemo_vfm.cli.verbs.report.run", "nemo_vfm.runtime.run_lock.os.kill", "nemo_vfm.runtime.run_lock.lock",
    "nemo_vfm.runtime.run_folder._git", "nemo_vfm.__main__.main", "nemo_vfm.workflow.step_folder.shutil.move",
    "nemo_vfm.workflow.perform", "nemo_vfm.report.page.write", "nemo_vfm.report.page.render",
    "nemo_vfm.curate.output.write_outputs.copy_files", "nemo_vfm.curate.output.write_outputs.replaced_folder",
    "nemo_vfm.parallel.checkpoint.tensor_file.write", "nemo_vfm.parallel.checkpoint.tensor_file.read",
    "nemo_vfm.nemo.experiment.NeMoExperiment", "nemo_vfmx.evil.Run", "nemo_vfm", "nemo_vfm..core", ".os.system",
    "os.system\n", "os.system ", "os .system", "os:system", "os/system", "nemo_vfm.core.storage.files.write_text\0",
    "nemo_vfm.core.types.job.Run()", "nemo_vfm.core.types.job.Run.__class__",
    "nemo_vfm.core.types.job.Run.__init__.__globals__",
    "о\u0073.system", "ｏｓ.system", "", "x" * 5000, "a." * 3000 + "b",
    f"{PARTS}.system", f"{PARTS}.logging.os.system", f"{PARTS}.partial", f"{PARTS}.os.system", f"{PARTS}.json.loads",
    f"{PARTS}.Outer.Inner", f"{PARTS}.Path.cwd", f"{PARTS}.Duration.parse",
    f"{PARTS}.torch.nn.Embedding.from_pretrained",
    f"{PARTS}.Size.__init__", f"{PARTS}.Scale.apply", f"{PARTS}.SPARE", f"{PARTS}.Stage",
    "tests.support.partsx.Evil",
)  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_what_is_defined_where_it_is_trusted_is_found_for_a_slot(kitchen, name):
    recipe = kitchen.write("recipe.yaml", json.dumps({"_target_": name}, ensure_ascii=False))
    with pytest.raises((RecipeError, ValueError)):
        build(compose(recipe), TRUST)


CANARY = "touch canary"
#: Places where a recipe may hide a component; {call} is replaced.
PLACES = {
    "root": "{call}",
    "slot": "_target_: @.Wide\nstage: {call}",
    "mapping": "_target_: @.Wide\nstages: {{a: {call}}}",
    "list": "_target_: @.Wide\nchain: [{call}]",
    "factory": "_target_: @.Wide\nmake: {call}",
    "value": "_target_: @.Wide\nname: {call}",
    "untyped slot": "_target_: @.Wide\nloose: {{_target_: @.Loose, value: {call}}}",
    "untyped keyword": "_target_: @.Wide\nloose: {{_target_: @.Loose, more: [{{x: {call}}}]}}",
    "anchor": "_target_: @.Wide\nname: &x {call}\nstage: *x",
    "interpolation": "_target_: @.Wide\nname: {call}\nstage: ${{name}}",
    "hydra": "_target_: @.Wide\nstage: {{_target_: @.Scale, by: 1, _args_: [{call}], _partial_: true}}",
    "reserved key": "_target_: @.Wide\nseed: {call}",
    "run folder": "_target_: @.Wide\nrun_dir: {call}",
}
CALLS = {
    "system": "{_target_: os.system, command: 'touch canary'}",
    "alias": "{_target_: @.logging.os.system, command: 'touch canary'}",
    "imported": "{_target_: @.system, command: 'touch canary'}",
    "eval": "{_target_: builtins.eval, source: \"__import__('os').system('touch canary')\"}",
    "called later": "{_target_: os.system, _args_: ['touch canary'], _partial_: true}",
    "partial": "{_target_: functools.partial, _args_: [os.system, 'touch canary']}",
    "file writer of ours": "{_target_: nemo_vfm.core.storage.files.write_text, path: canary, text: x}",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_canary_is_absent_wherever_the_call_hides(kitchen, place, call):
    text = place.replace("{call}", call).replace("{{", "{").replace("}}", "}") if place != "{call}" else call
    with pytest.raises(RecipeError):
        composed = kitchen.compose(text)
        _ = composed.seed, composed.run_dir
        build(composed, TRUST)
    assert not (kitchen.folder / "canary").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("stage._target_=os.system", "stage.command=touch canary"),
        ("stage={_target_: os.system, command: touch canary}",),
        ("_target_=os.system", "command=touch canary"),
        ("stage=!!python/object/apply:os.system ['touch canary']",),
        ("stage=${env:PARTS_CALL}",),
        ("stage._target_=${env:PARTS_NAME}", "stage.command=touch canary"),
    ],
)
def test_a_call_from_the_command_line_or_the_environment_is_refused_too(kitchen, monkeypatch, words):
    monkeypatch.setenv("PARTS_CALL", "{_target_: os.system, command: touch canary}")
    monkeypatch.setenv("PARTS_NAME", "os.system")
    with pytest.raises(RecipeError):
        kitchen.build("_target_: @.Wide\n", *words)
    assert not (kitchen.folder / "canary").exists()


def test_an_untrusted_module_is_not_even_imported(kitchen, monkeypatch):
    kitchen.write("evil_module.py", "from pathlib import Path\nPath('canary').touch()\nclass Job: ...\n")
    monkeypatch.syspath_prepend(str(kitchen.folder))
    said = kitchen.problems("_target_: evil_module.Job")
    assert "evil_module.Job is not trusted; if you trust its code, add --trust evil_module" in said
    assert not (kitchen.folder / "canary").exists()
    check(kitchen.compose("_target_: evil_module.Job"), trust_list(["evil_module"]))
    assert (kitchen.folder / "canary").exists(), "this test must be able to see an import"


def test_a_recipe_cannot_widen_the_trust(kitchen):
    assert "trust" in kitchen.problems("_target_: @.Wide\ntrust: [os]\n")
    assert "is not trusted" in kitchen.problems("_target_: os.system\ntrust: [os]\n")


def test_a_prefix_ends_at_a_dot():
    with pytest.raises(NotLocated, match="not trusted"):
        locate("tests.support.parts_other.X", trust_list(["tests.support.parts"]))
    assert locate("tests.support.parts.Scale", trust_list(["tests.support.parts."])).__name__ == "Scale"


def test_a_trusted_package_does_not_lend_its_imports():
    with pytest.raises(NotLocated, match=r"is defined as functools.partial, which is not trusted"):
        locate("tests.support.parts.partial", trust_list(["tests.support.parts"]))


def test_the_default_list_is_short_and_every_name_on_it_exists():
    named = [name for name in DEFAULT_TRUST if not name.endswith(".")]
    assert len(named) <= 32 and [name for name in DEFAULT_TRUST if name.endswith(".")] == ["nemo_vfm."]
    for name in named:
        assert locate(name, DEFAULT_TRUST).__module__.split(".")[0] in ("torch", "lightning")


#: What acts when it is called, and what it would leave behind or change.
ACTING: dict[str, dict[str, object]] = {
    "synth.checks.limited_child.run_python": {
        "source": "open('MARK', 'w').write('ran')", "strict": False, "without": ["landlock", "seccomp", "namespaces"]},
    "asking.journal.OpenJournal": {"path": "FILE", "others": []},
    "data.shards.shard_files.ShardWriter": {"folder": "FOLDER", "samples_per_shard": 9, "max_shard_bytes": 9999},
    "core.storage.files.sha256_file": {"path": "FILE"},
    "serve.openai_api.http_server.HttpServer": {"app": None, "listen": {}},
}  # fmt: skip


@pytest.mark.parametrize("name", ACTING)
def test_nothing_of_ours_that_acts_is_called_by_a_config(name, kitchen):
    precious = kitchen.write("precious/.keys", "first\nlast, and torn")
    places = {"MARK": f"{kitchen.folder}/mark", "FILE": str(precious), "FOLDER": str(precious.parent)}
    text = json.dumps({"_target_": f"nemo_vfm.{name}", **ACTING[name]})
    for word, place in places.items():
        text = text.replace(word, place)
    with pytest.raises(RecipeError, match="so recipes cannot use it; name a component, or your own"):
        nemo_vfm.build(json.loads(text))
    assert precious.read_text() == "first\nlast, and torn"
    assert not (kitchen.folder / "mark").exists()


def test_a_slot_makes_no_class_of_its_own_annotation_that_opens_what_it_is_given():
    assert not is_trusted(OpenJournal, DEFAULT_TRUST)
    assert is_trusted(Journal, DEFAULT_TRUST)


SHIFT = f"{{_target_: {PARTS}.Shift}}"
CALLBACKS = "lightning.pytorch.callbacks"
#: What a class that the user trusts may be given, and another class may not: of ours, and of the default list.
ONLY_TRUSTED = {
    "a component where anything goes": (
        f"callbacks: {{a: {{_target_: {CALLBACKS}.RichProgressBar, console_kwargs: {{a: {SHIFT}}}}}}}",
        "it takes no component"),
    "a component as a keyword": (
        f"callbacks: {{a: {{_target_: {CALLBACKS}.ModelSummary, more: {SHIFT}}}}}", "it takes no component"),
    "what is called later": ("trainer: {_partial_: true}", "takes no argument _partial_"),
    "what is called later, in a factory's slot": (
        f"callbacks: {{a: {{_target_: {CALLBACKS}.Timer, _partial_: true}}}}", "takes no argument _partial_"),
    "by position": (f"callbacks: {{a: {{_target_: {CALLBACKS}.Timer, _args_: [1]}}}}", "takes no argument _args_"),
    "a class method": ("module: {_target_: nemo_vfm.core.duration.Duration.parse, text: a}", "there is no module"),
    "an inherited class method": (
        "module: {_target_: lightning.pytorch.demos.boring_classes.BoringModel.load_from_checkpoint}",
        "is not trusted"),
    "a function that says nothing": ("module: {_target_: nemo_vfm.workflow.perform}", "may do more than build"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), ONLY_TRUSTED.values(), ids=ONLY_TRUSTED)
def test_what_trusted_classes_may_be_given_no_other_class_is_given(kitchen, text, words):
    fit = "_target_: nemo_vfm.train.lightning_fit.LightningFit\n"
    for trust in (DEFAULT_TRUST, trust_list(["nemo_vfm", "nemo_vfm.train"]), TRUST):
        problems = check(kitchen.compose(fit + text), trust)
        assert any(words in problem.message for problem in problems), [problem.message for problem in problems]


@pytest.mark.parametrize(
    ("package", "name"),
    [("torch", "torch.load"), ("torch", "torch.hub.load"), ("torch.hub", "torch.hub.load"), ("numpy", "numpy.load"),
     ("subprocess", "subprocess.run"),
     ("torch", "torch.nn.Embedding.from_pretrained")],
)  # fmt: skip
def test_who_trusts_a_package_of_everybodys_does_not_trust_its_functions_that_run_others_code(package, name):
    with pytest.raises(NotLocated, match=f"if you trust this one, add --trust {re.escape(name)}$"):
        locate(name, trust_list([package]))
    assert not inspect.isclass(locate(name, trust_list([name])))
