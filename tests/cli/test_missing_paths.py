"""Tests that `check --paths` names missing files and folders, except those that the run will make."""

from pathlib import Path

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.config import compose, paths, trust_list
from nemo_vfm.runtime.checks.missing_paths import _here, mounts_of
from tests.support.repository import ROOT

RECIPES = sorted(str(path.relative_to(ROOT / "recipes")) for path in (ROOT / "recipes").rglob("*.yaml"))
#: Recipe, the change that names what is not there, the key that is to be named.
MISSING = [
    ("quickstart", "input=gone", "input"),
    ("curation/clips", "source.path=gone", "source.path"),
    ("curation/check_captions", "shards=gone", "shards"),
    ("curation/check_captions", "likeness.folder=gone", "likeness.folder"),
    ("curation/dedup", "shards=[gone]", "shards.0"),
    ("curation/encode", "shards=gone", "shards"),
    ("curation/export_dfm", "shards=gone", "shards"),
    ("curation/redecide", "curated=gone", "curated"),
    ("curation/train_scorer", "model.folder=gone", "model.folder"),
    ("diffusion/sample", "checkpoint=gone", "checkpoint"),
    ("diffusion/train_small", "data.shards=[.,gone]", "data.shards.1"),
    ("diffusion/train_small", "weights.start_from=gone", "weights.start_from"),
    ("diffusion/train_folder", "data.path=gone", "data.path"),
    ("diffusion/train_blend", "data.sources.stills.data.path=gone", "data.sources.stills.data.path"),
    ("diffusion/train_packed", "data.data.shards=gone", "data.data.shards"),
    ("llm/generate", "model.folder=gone", "model.folder"),
    ("llm/generate", "tokenizer.folder=gone", "tokenizer.folder"),
    ("llm/tokenize", "path=gone", "path"),
    ("llm/tokenize", "tokenizer.folder=gone", "tokenizer.folder"),
    ("llm/train_tokenizer", "documents.path=gone", "documents.path"),
    ("llm/nemotron4_1b", "data.sources.text.folder=gone", "data.sources.text.folder"),
]


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit status of `check --paths`, and what it said."""
    status = main(["check", *words, "--paths"])
    return status, capsys.readouterr().out


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory but for one file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "films").mkdir()
    (tmp_path / "films/one.mp4").touch()
    return tmp_path


@pytest.mark.parametrize(("recipe", "change", "key"), MISSING)
def test_what_is_not_there_is_named_with_its_key(desk, capsys, recipe, change, key):
    status, said = checked(capsys, recipe, change)
    assert status == 2 and f"command line  {key}\n" in said
    assert f"there is no gone on this machine (relative paths begin in {desk})" in said
    assert said.count("^") - said.count("you must set this") == 1, "a path is told once, wherever it is used"


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.slow
def test_no_recipe_of_ours_is_refused_for_what_it_makes_by_itself(desk, capsys, recipe):
    status, said = checked(capsys, recipe)
    assert status == 0, said


@pytest.mark.parametrize("recipe", ["quickstart", "curation/clips", "diffusion/train_small", "llm/tokenize"])
def test_what_is_there_is_no_problem(desk, capsys, recipe):
    given = [f"{one.path}=films" for one in _missing(recipe)] or ["input=films"]
    status, said = checked(capsys, recipe, *given)
    assert (status, said.splitlines()[-1].rpartition(": ")[2]) == (0, "ok"), said


def _missing(recipe: str):
    from nemo_vfm.config import check

    return [one for one in check(compose(recipe)) if one.kind == "missing"]


def test_a_path_of_a_recipe_is_told_at_its_file_and_line(desk, capsys):
    (desk / "mine.yaml").write_text(f"{TOKENIZE}path: filmz\n")
    status, said = checked(capsys, "mine.yaml")
    assert status == 2 and "mine.yaml:3:7  path" in said and "did you mean films?" in said


TOKENIZE = """\
_target_: nemo_vfm.text.tokenize.TokenizeText
tokenizer: {_target_: nemo_vfm.data.tokenizers.folder_tokenizer.FolderTokenizer, folder: films}
"""
ORDER = """\
_target_: nemo_vfm.workflow.Workflow
steps:
  a: {_target_: nemo_vfm.curate.embed_text.EmbedText, shards: "${run_dir}/b/shards", text_encoder: {
        _target_: nemo_vfm.models.transformers_text.TransformersTextEncoder, family: t5, folder: "${run_dir}/c/model"}}
  b: {_target_: nemo_vfm.curate.prepare_energon.WriteEnergon, shards: "${run_dir}/a/shards"}
"""


def test_what_a_later_step_makes_and_what_no_step_makes_is_not_there(desk, capsys):
    (desk / "mine.yaml").write_text(ORDER)
    status, said = checked(capsys, "mine.yaml")
    assert status == 2 and "runs/mine/b/shards is created by step b, which comes after a" in said
    assert "there is no runs/mine/c/model on this machine (" in said and "a/shards" not in said


MADE = """\
_target_: nemo_vfm.workflow.Workflow
defaults: [{steps.a.steps.films: recipe:synthetic/shapes.yaml}, {steps.b: recipe:curation/encode.yaml},
           {steps.c: recipe:curation/encode.yaml}, {steps.d: recipe:curation/clips.yaml}]
steps:
  a: {_target_: nemo_vfm.workflow.Workflow}
  b: {shards: "${run_dir}/a/films/clips/x.tar"}
  c: {shards: "${run_dir}/b/shardz"}
  d: {source: {path: "${run_dir}/a/films/film-01.mp4"}}
"""


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_name_that_an_earlier_step_does_not_make_is_refused_with_those_that_it_makes(desk, capsys, verb):
    (desk / "mine.yaml").write_text(MADE)
    assert main([verb, "mine.yaml"]) == 2 and not (desk / "runs/mine/a").exists()
    shown = capsys.readouterr()
    said = " ".join((shown.out + shown.err).split())
    assert "mine.yaml:6:15 steps.b.shards" in said and "step films makes no clips, but film-*, videos.json" in said
    assert "mine.yaml:7:" in said and "step b makes no shardz; did you mean shards?" in said
    assert said.count(" makes no ") == 2


def test_an_empty_folder_and_one_behind_a_missing_one_are_told_as_that(desk, capsys):
    (desk / "empty").mkdir()
    assert "empty is an empty folder" in checked(capsys, "curation/clips", "source.path=empty")[1]
    said = checked(capsys, "curation/clips", f"source.path={desk}/filme/deeper/still")[1]
    assert f": {desk} holds no filme; did you mean films?" in said


def test_tars_by_number_are_looked_for_in_their_folder(desk, capsys):
    data = "data._target_=nemo_vfm.data.sources.streamed.StreamedTars"
    for folder, status in (("films", 0), ("gone", 2)):
        words = [f"data.tars={folder}/x-{{000..004}}.tar", data, "~data.shards", "~data.val_fraction"]
        assert checked(capsys, "diffusion/train_small", *words)[0] == status


def test_addresses_and_paths_of_others_are_listed_as_not_looked_at(desk, capsys):
    status, said = checked(capsys, "diffusion/train_small", "data.shards=s3://bucket/x", "--allow-host=s3://bucket")
    assert status == 0 and "not looked at: s3://bucket/x (data.shards), which is in an object store\n" in said
    (desk / "mine.yaml").write_text("_target_: tests.support.needing.Needs\npath: given.txt\n")
    status, said = checked(capsys, "mine.yaml", "--trust", "tests.support.needing")
    assert status == 0 and "not looked at: given.txt (path), since tests.support.needing.Needs may" in said


def test_a_path_from_the_environment_is_not_shown(desk, capsys, monkeypatch):
    monkeypatch.setenv("WHERE", "/gone/private")
    status, said = checked(capsys, "curation/clips", "source.path=${env:WHERE}")
    assert status == 2 and "private" not in said and "nothing exists at a path from the environment" in said


def test_in_a_container_only_what_is_mounted_is_looked_at(desk, capsys):
    mounts = [f"--mount={desk}:{desk}", f"--mount={desk}/films:/data"]
    recipe = ("llm/tokenize", "path=/data/one.mp4", "tokenizer.folder=/opt/tokenizer", *mounts)
    status, said = checked(capsys, *recipe)
    assert status == 0 and "not looked at: /opt/tokenizer (tokenizer.folder), which only the container has" in said
    assert checked(capsys, *recipe, "path=/data/two.mp4")[0] == 2
    assert main(["check", "llm/tokenize", "--paths", "--mount", "data:/data"]) == 2


def test_of_folders_that_are_mounted_one_below_the_other_the_inner_one_counts(tmp_path):
    words = [f"{tmp_path}/a:/data", f"{tmp_path}/b:/data/films/new", f"{tmp_path}/c:/data/films"]
    for mounts in (mounts_of(words), mounts_of(words[::-1])):
        for inside, outside in (("/data/x", "a/x"), ("/data/films/x", "c/x"), ("/data/films/new/x", "b/x")):
            assert _here(Path(inside), mounts) == tmp_path / outside
        assert _here(Path("/database/x"), mounts) is None
    assert mounts_of([]) is None and _here(Path("x"), None) == Path.cwd() / "x"


CACHE = "data.cache={_target_: nemo_vfm.data.shards.shard_cache.ShardCache, folder: gone, max_gb: 1}"


@pytest.mark.parametrize(
    ("words", "status"),
    [(["diffusion/train_folder", "data.path=films", "data.index=gone"], 0),
     (["diffusion/train_small", "data.shards=films", CACHE], 0), (["energon.yaml"], 2)],
)  # fmt: skip
def test_what_is_made_where_it_is_not_there_is_no_problem_unlike_what_is_changed(desk, capsys, words, status):
    (desk / "energon.yaml").write_text("_target_: nemo_vfm.curate.prepare_energon.WriteEnergon\nshards: gone\n")
    assert checked(capsys, *words)[0] == status


def test_the_second_source_of_a_curation_counts_only_where_the_first_is_not_given(desk):
    words = [f"source.otherwise={desk}/gone", "source.path=films"]
    assert [one.key for one in paths(compose("curation/clips", words), trust_list())] == ["source.path"]
    keys = [one.key for one in paths(compose("curation/clips", [*words[:1], "source.path=null"]), trust_list())]
    assert keys == ["source.otherwise"]
