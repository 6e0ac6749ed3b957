"""Tests that torch alone gives a ranker's scores from its program, for any number of samples and ids."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import UserError
from nemo_vfm.metrics.ranking import auc
from nemo_vfm.models.recommenders.dcn_v2 import DCNv2
from nemo_vfm.models.recommenders.din import DIN
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.models.recommenders.history_transformer import HistoryTransformer
from nemo_vfm.models.recommenders.hstu import HSTU
from nemo_vfm.models.recommenders.ranker_program import PROGRAM, write_ranker
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionGroup, SessionLog
from nemo_vfm.recsys.sessions.teacher import Teacher
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from tests.support.combinations import cases
from tests.support.session_batches import session_batch
from tests.support.session_chunk import SCHEMA, session_chunk
from tests.support.small_recommenders import small

#: What a host without this library runs: ids of a table as lists, then scores of each program.
TORCH_ALONE = """
import json, sys, torch
columns, *folders = sys.argv[1:]
rows = json.load(open(columns))
for folder in folders:
    about = json.load(open(f"{folder}/ranker.json"))
    ranker = torch.export.load(f"{folder}/ranker.pt2").module()
    dense = torch.tensor(rows["dense"])
    values = {name: torch.tensor([one for row in rows[name] for one in row]) for name in about["features"]}
    lengths = {name: torch.tensor([len(row) for row in rows[name]]) for name in about["features"]}
    scores = ranker(dense, values, lengths)
    print(json.dumps(scores[:, about["labels"].index("click")].tolist()))
assert not [name for name in sys.modules if name.startswith("nemo_vfm")]
"""


def called(program: nn.Module, batch: FeatureBatch, names: tuple[str, ...]) -> torch.Tensor:
    values = {name: batch.features[name].values_N for name in names}
    found: torch.Tensor = program(batch.dense_BF, values, {name: batch.features[name].lengths_B for name in names})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases([DLRM, DCNv2, DIN, HSTU, HistoryTransformer], [DLRM, HSTU]))
def test_a_program_gives_the_models_scores_whatever_the_number_of_samples_and_ids(kind, tmp_path):
    model = small(kind, deduplicated={"user": "lookup"}).eval()
    batches = [session_batch(samples=24, seed=seed).rows(0, size).expand() for seed, size in enumerate((1, 2, 7, 24))]
    names = model.features()
    for rows in ("fp32", "int8"):
        if rows == "int8":  # by how much rounding moves a score hangs on the weights: these rows lose nothing by it
            for name in model.tables.tables:
                rows_RD = model.tables.state()[f"{name}.weight"]
                scale_R1 = rows_RD.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
                rows_RD.copy_((rows_RD / scale_R1).round() * scale_R1)
        expected = [model(batch).sigmoid() for batch in batches]
        copy = small(kind, deduplicated={"user": "lookup"}).eval()
        copy.load_state_dict(model.state_dict())
        (tmp_path / rows).mkdir()
        write_ranker(copy, tmp_path / rows, rows)
        with zipfile.ZipFile(tmp_path / rows / PROGRAM) as members:
            pickles = [one for one in members.namelist() if b".pkl" in members.read(one) or one.endswith(".pkl")]
        assert not pickles, "nobody has to trust it"
        program = torch.export.load(tmp_path / rows / PROGRAM).module()
        for batch, scores in zip(batches, expected, strict=True):
            torch.testing.assert_close(called(program, batch, names), scores, rtol=0, atol=1e-6)
    with pytest.raises(UserError, match="Linear has no embedding tables"):
        write_ranker(nn.Linear(2, 2), tmp_path, "fp32")


LEARNED, HELD_OUT, ROWS = 80 * 512, 20_000, {"item": 200, "category": 50, "history": 200}
LOG = SessionLog(
    num_samples=LEARNED + HELD_OUT, samples_per_session=4, dense=["d1", "d2", "d3"],
    features={name: IdFeature(rows=ROWS[name]) for name in ("item", "category")},
    groups={"clicks": SessionGroup(unchanged=0.5, features={"history": IdFeature(rows=200, length=6, history=True)})},
    teacher=Teacher(auc=0.85, rate=0.3, single=["item", "category", "history"], pairs=[["item", "category"]],
                    dense=["d1"], pairs_share=0.2),
)  # fmt: skip
SIZES = {"width": 16, "num_labels": 1, "table_optimizer": RowWiseAdaGrad(lr=0.3)}
HISTORY = {"history": {"history": "item"}, "rows": {name: ROWS[name] for name in ("item", "category")}, **SIZES}
POOLED = {"bottom": [32, 16], "rows": ROWS, **SIZES}
RANKERS = {DLRM: POOLED, DCNv2: POOLED, DIN: HISTORY, HSTU: {"longest": 6, "times": None, **HISTORY}}


def logged(begin: int, end: int) -> FeatureBatch:
    chunk = LOG.samples(begin, end)
    return FeatureBatch(0, chunk.ids_B, torch.ones(len(chunk)), chunk.dense_BF, chunk.labels, chunk.features)


def learned(kind: type[nn.Module]) -> nn.Module:
    """A ranker after one pass over the log of the teacher."""
    torch.manual_seed(0)
    model = small(kind, **RANKERS[kind])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for begin in range(0, LEARNED, 512):
        batch = logged(begin, begin + 512)
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(batch)[:, 0], batch.labels["click"]).backward()
        model.tables.update(1.0)
        optimizer.step()
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases([DLRM, DCNv2, DIN, HSTU], [DLRM, HSTU]))
def test_rows_of_a_byte_a_number_rank_what_a_teacher_taught_as_those_of_fp32_do(kind, tmp_path):
    model, batch = learned(kind), logged(LEARNED, LEARNED + HELD_OUT)
    names, labels = model.features(), batch.labels["click"]
    with torch.no_grad():
        fp32 = auc(model(batch)[:, 0].sigmoid(), labels)  # a program of fp32 gives the same, see above
        write_ranker(model, tmp_path, "int8")
        int8 = auc(called(torch.export.load(tmp_path / PROGRAM).module(), batch, names)[:, 0], labels)
    assert fp32 > 0.75, "it learned; the teacher itself has 0.85"
    assert int8 == pytest.approx(fp32, abs=5e-4)


def recipe(folder: Path) -> Path:
    text = {
        "_target_": "nemo_vfm.train.job.Train", "defaults": [{"engine": "torch"}, {"precision": "fp32"}],
        "model": {
            "_target_": "nemo_vfm.models.recommenders.dlrm.DLRM", "dense": 1, "bottom": [8], "top": [16], "width": 8,
            "rows": {"country": 9, "scores": 4000}, "num_labels": 2,
            "table_optimizer": {"_target_": "nemo_vfm.sparse.tables.row_optimizer.RowSgd", "lr": 1.0},
        },
        "data": {"_target_": "nemo_vfm.recsys.feature_table_data.FeatureTableData", "folder": str(folder / "table"),
                 "batch_size": 24, "val_fraction": 0.5},
        "task": {"_target_": "nemo_vfm.recsys.click.Click", "labels": {"like": 1.0, "click": 1.0}},
        "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
        "loop": {
            "duration": "20 steps",
            "checkpoint": {"_target_": "nemo_vfm.train.callbacks.checkpointing.SaveCheckpoints", "every_steps": 20},
        },
        "callbacks": {"predictions": {"_target_": "nemo_vfm.train.callbacks.predictions.WritePredictions"}},
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(text))
    return path


@pytest.mark.slow
def test_a_run_becomes_a_program_that_twelve_lines_of_torch_score_a_table_with(tmp_path, capsys):
    chunk = session_chunk(160, seed=1)
    scores = chunk.features["scores"]
    plain = {**chunk.features, "scores": type(scores)(scores.values_N % 40, scores.lengths_B)}
    writer = FeatureTableWriter(tmp_path / "table", SCHEMA, rows_per_group=64)
    writer.add(type(chunk)(chunk.ids_B, chunk.session_B, chunk.time_B, chunk.dense, chunk.labels, plain))
    writer.finish()
    assert main(["run", str(recipe(tmp_path)), f"run_dir={tmp_path / 'run'}"]) == 0, capsys.readouterr().err[-2000:]
    predictions = pq.read_table(tmp_path / "run/predictions.parquet").to_pydict()
    table = FeatureTable(tmp_path / "table").read(0, len(chunk))
    place = {number: row for row, number in enumerate(table.ids_B.tolist())}
    held = table.select(torch.tensor([place[number] for number in predictions["id"]]))
    rows = {name: [held.features[name].rows(n, n + 1).values_N.tolist() for n in range(len(held))]
            for name in ("country", "scores")}  # fmt: skip
    (tmp_path / "rows.json").write_text(json.dumps({"dense": held.dense_BF.tolist(), **rows}))
    for dtype in ("fp32", "int8"):
        words = ["convert", str(tmp_path / "run"), str(tmp_path / dtype), "--to", "exported", "--dtype", dtype]
        assert main(words) == 0, capsys.readouterr().err[-2000:]
    command = [sys.executable, "-c", TORCH_ALONE, "rows.json", "fp32", "int8"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    for line, atol in zip(done.stdout.splitlines(), (1e-6, 3e-3), strict=True):
        found = torch.tensor(json.loads(line))
        assert found.tolist() == pytest.approx(predictions["score_click"], abs=atol)
        labels = torch.tensor(predictions["label_click"])
        assert auc(found, labels) == pytest.approx(auc(torch.tensor(predictions["score_click"]), labels), abs=3e-3)
    about = json.loads((tmp_path / "fp32/ranker.json").read_text())
    assert about["dense_names"] == ["age"] and about["tables"] == {"country": 9, "scores": 4000} and about["step"] == 20
    sizes = [(tmp_path / dtype / PROGRAM).stat().st_size for dtype in ("fp32", "int8")]
    assert sizes[0] > sizes[1]
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "x"), "--to", "exported", "--dtype", "bf16"]) == 2
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "x"), "--to", "native", "--dtype", "int8"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "rows of tables are written as fp32 or int8" in said and "--dtype int8 needs --to exported" in said
