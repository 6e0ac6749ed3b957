"""Tests that a recipe writes in its run folder and below the working directory, and elsewhere only as the user says."""

import os
from pathlib import Path

import pytest

from nemo_vfm import build, compose, run
from nemo_vfm.asking.journal import Journal
from nemo_vfm.config import RecipeError
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.data.shards.shard_cache import ShardCache
from nemo_vfm.data.shards.tar_order import TarCounts
from nemo_vfm.data.video.media_info import facts_of_files
from tests.security.test_paths import tree_below
from tests.support.recipe_folder import PARTS, ROOT, Kitchen

WRITES = "_target_: @.Writes\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home beside the working directory, which is empty."""
    inside, home = tmp_path / "inside", tmp_path / "mine"
    inside.mkdir(), home.mkdir(mode=0o755)
    monkeypatch.chdir(inside)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    return home


OUTSIDE = [
    "${env:HOME}/.bashrc", "${env:HOME}/new", "~/x/../../../${env:HOME}/new", "../mine/new", "a/../../mine/new",
    "/etc/cron.d/new", "link/new", "a/link/new", ".ssh/rc", "a/.hidden/x", ".bashrc", ".git/hooks/x", "a/.GIT/x", "/",
    ".", "${run_dir}/../../../mine/new", "${run_dir}/link/new", "${env:HOME}",
]  # fmt: skip


@pytest.mark.parametrize("file", OUTSIDE)
@pytest.mark.parametrize("way", ["file", "more.one"])
def test_a_recipe_writes_nothing_outside(home, file, way):
    (home / ".bashrc").write_text("echo mine")
    for folder in ("a", "runs/r", ".git/hooks", "a/.GIT"):
        Path(folder).mkdir(parents=True)
    for link in ("link", "a/link", "runs/r/link"):
        Path(link).symlink_to(home)
    kitchen, before = Kitchen(Path()), tree_below(home)
    kitchen.write("r.yaml", WRITES + (f"file: {file}\n" if way == "file" else f"file: x\nmore: {{one: '{file}'}}\n"))
    assert kitchen.main("check", "r.yaml") == 2 and kitchen.main("run", "r.yaml") == 2
    assert tree_below(home) == before and (home / ".bashrc").read_text() == "echo mine"


def test_the_refusal_says_where_and_what_to_do_without_the_value_of_a_variable(home, capsys):
    kitchen = Kitchen(Path())
    kitchen.write("r.yaml", WRITES + "file: ${env:HOME}/x\n")
    assert kitchen.main("check", "r.yaml") == 2
    said = capsys.readouterr().out
    assert "r.yaml:2" in said and "file=PATH" in said and "--allow-write DIR" in said and str(home) not in said


@pytest.mark.parametrize("file", ["x", "new/folder/x", "${run_dir}/x", "${run_dir}/.kept/x", "$PWD/x"])
def test_a_recipe_writes_below_the_working_directory_and_in_its_run_folder(home, file):
    kitchen = Kitchen(Path())
    kitchen.write("r.yaml", WRITES + f"file: {file.replace('$PWD', str(Path.cwd()))}\n")
    assert kitchen.main("run", "r.yaml", f"run_dir={home}/run") == 0
    assert {path.partition("/")[0] for path in tree_below(home)} == {"run"}, "nothing else, and nothing to remember"


@pytest.mark.parametrize("run_dir", [".", ".config/run"])
def test_a_run_folder_makes_nothing_hidden_free(home, run_dir):
    kitchen = Kitchen(Path())
    kitchen.write("r.yaml", WRITES + f"file: .config/run/x\nrun_dir: {run_dir}\n")
    assert kitchen.main("check", "r.yaml") == 2


def test_the_root_of_the_file_system_is_nobodys_working_directory(home, monkeypatch):
    kitchen = Kitchen(Path.cwd())
    recipe = kitchen.write("r.yaml", WRITES + f"file: {home}/new\n")
    monkeypatch.chdir("/")
    assert kitchen.main("check", str(recipe), f"run_dir={home}/run") == 2


class TestWhatTheUserTyped:
    """It stays typed wherever the run goes on."""

    def test_is_written_anywhere_but_in_gits_own_folders(self, home):
        kitchen = Kitchen(Path())
        kitchen.write("s.yaml", WRITES + "file: ???\n")
        assert kitchen.main("run", "s.yaml", f"file={home}/new") == 0 and (home / "new").is_file()
        assert kitchen.main("run", "s.yaml", "file=${env:HOME}/other", "run_dir=runs/t") == 0
        (home / ".git").mkdir()
        assert kitchen.main("run", "s.yaml", f"file={home}/.git/config", "run_dir=runs/u") == 2

    def test_is_no_leave_to_write_beside_it(self, home):
        kitchen = Kitchen(Path())
        kitchen.write("r.yaml", WRITES + "file: x\nmore: {typed: ???, beside: '${more.typed}/../.bashrc'}\n")
        assert kitchen.main("check", "r.yaml", f"more.typed={home}/new") == 2

    @pytest.mark.slow
    def test_is_typed_in_a_step_a_sweep_and_from_python(self, home, monkeypatch):
        kitchen = Kitchen(Path())
        monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the processes of the sweep
        kitchen.write("inner.yaml", WRITES + "file: ???\n")
        kitchen.write("w.yaml", "_target_: nemo_vfm.workflow.Workflow\nsteps: {one: 'recipe:inner.yaml'}\n")
        assert kitchen.main("run", "w.yaml", f"steps.one.file={home}/of_step") == 0
        assert kitchen.main("run", "inner.yaml", "--sweep", f"file={home}/a,{home}/b") == 0
        composed = compose("inner.yaml", [f"file={home}/of_python"])
        assert run(composed, run_dir="runs/p", trust=[PARTS]).summary == "wrote"
        assert {"of_step", "a", "b", "of_python"} <= tree_below(home).keys()
        composed.file = str(home / "set")  # as if it stood in the file
        with pytest.raises(RecipeError, match="--allow-write"):
            run(composed, run_dir="runs/q", trust=[PARTS])
        assert run(composed, run_dir="runs/q", trust=[PARTS], allow_write=[home]).summary == "wrote"
        assert build(composed, trust=[PARTS], allow_write=[home]).file == home / "set"

    def test_is_remembered_for_the_run_folders_own_recipe_and_for_no_other(self, home):
        kitchen = Kitchen(Path())
        kitchen.write("r.yaml", WRITES + "file: ???\n")
        assert kitchen.main("run", "r.yaml", f"file={home}/new") == 0
        own = Path("runs/r/recipe.yaml")
        assert kitchen.main("run", str(own)) == 0, "the same run"
        kitchen.write("copy.yaml", own.read_text().replace("/new", "/.profile"))
        assert kitchen.main("check", "copy.yaml") == 2
        (home / ".local").rename(home / "gone")
        assert kitchen.main("run", str(own)) == 2, "what a run folder says grants nothing"


class TestWhatTheUserAllows:
    """A folder, on the command line or in the endpoints file."""

    def test_a_folder_is_allowed_with_all_below_it_and_nothing_beside_it(self, home):
        kitchen = Kitchen(Path())
        kitchen.write("r.yaml", WRITES + "file: ${env:HOME}/scratch/deep/x\n")
        (home / "scratch").mkdir()
        assert kitchen.main("run", "r.yaml", "--allow-write", str(home / "scratch-2")) == 2
        assert kitchen.main("run", "r.yaml", "--allow-write", "~/scratch") == 0
        assert (home / "scratch/deep/x").is_file()

    def test_the_endpoints_file_names_folders(self, home, capsys):
        kitchen, settings = Kitchen(Path()), home / ".config/nemo_vfm/endpoints.yaml"
        kitchen.write("r.yaml", WRITES + "file: ${env:HOME}/scratch/x\n")
        settings.parent.mkdir(parents=True, mode=0o755)
        for text, status in (("write: [~/scratch]", 0), ("write: [scratch]", 2), ("write: ~/scratch", 2)):
            settings.write_text(text + "\n")
            settings.chmod(0o644)
            assert kitchen.main("check", "r.yaml") == status, text


def test_a_folder_whose_name_only_begins_like_an_allowed_one_is_not_allowed(tmp_path):
    allowed = Permissions.of(f"file://{tmp_path}/out")
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    for inside in ("out", "out/a", "out/../out/a/b", "link/a"):
        assert allowed.may_write(tmp_path / inside)
    (tmp_path / "out/away").symlink_to(tmp_path)
    for outside in ("out-2/a", "outer", "", "out/../a", "out/away/a"):
        assert not allowed.may_write(tmp_path / outside)


class TestFilesOfOthers:
    """They are never cut or replaced, also where the user typed their path by mistake."""

    @pytest.mark.parametrize("text", ["alias ll='ls -l'", '{"name": 1}\n', "\n", "\0", '{"schema": "nemo_vfm.run/1"}'])
    @pytest.mark.parametrize("kind", ["journal", "index", "counts"])
    def test_a_file_that_did_not_begin_as_ours_is_refused_and_unchanged(self, tmp_path, text, kind):
        file = tmp_path / "theirs"
        file.write_text(text)
        with pytest.raises(UserError, match=r"is not .*; choose another file"):
            _use(kind, file)
        assert file.read_text() == text and tree_below(tmp_path).keys() <= {"theirs", "theirs.lock"}

    @pytest.mark.parametrize("kind", ["journal", "index", "counts"])
    def test_an_empty_one_and_our_own_are_taken(self, tmp_path, kind):
        file = tmp_path / "ours"
        file.touch()
        _use(kind, file)
        _use(kind, file)
        assert file.read_text() or kind != "journal"

    def test_a_journal_whose_first_line_was_torn_goes_on(self, tmp_path):
        file = tmp_path / "answers.jsonl"
        file.write_text('{"key": "a", "val')
        _use("journal", file)
        assert file.read_text().count("\n") == 1

    def test_a_cache_deletes_only_what_it_has_fetched(self, tmp_path):
        ours, theirs = tmp_path / f"{'0' * 64}.tar", [tmp_path / "films.tar", tmp_path / ".films.1.tmp.tar"]
        for path in (ours, *theirs):
            path.write_bytes(b"x" * 1000)
            os.utime(path, (0, 0))
        ShardCache(folder=tmp_path, max_gb=1e-6)._make_room(1000, tmp_path / f"{'1' * 64}.tar")
        assert all(path.is_file() for path in theirs) and not ours.exists()


def _use(kind: str, file: Path) -> None:
    if kind == "journal":
        with Journal(file=file).open() as journal:
            journal.put("key", 1)
    elif kind == "index":
        facts_of_files({"x": file.parent / "x.mp4"}, file)
    else:
        TarCounts(file)
