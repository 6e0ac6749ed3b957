"""Tests that a page of several runs shows what differs, who is best and each curve in its run's colour."""

import json
import re
from pathlib import Path

import pytest

from nemo_vfm.cli.main import main
from tests.report.conftest import read_page


def trained(folder: Path, lr: float, losses: list[float], **figures: float) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(f"_target_: a.Train\noptimizer: {{lr: {lr}}}\nrun_dir: {folder}\nsame: 1\n")
    (folder / "status.json").write_text(json.dumps({"state": "done", "figures": figures}))
    lines = [json.dumps({"step": n, "loss": loss, "val_loss": loss / 2}) for n, loss in enumerate(losses, 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


def page(tmp_path, *runs) -> str:
    out = tmp_path / "comparison.html"
    assert main(["compare", *map(str, runs), "--out", str(out)]) == 0
    return out.read_text(encoding="utf-8")


def test_the_best_run_and_the_values_that_differ_stand_in_the_table(tmp_path, capsys):
    runs = [trained(tmp_path / "runs" / f"r{n}", 10.0**-n, [3.0, 1.0 + n], val_loss=1.0 + n) for n in (2, 1, 3)]
    (runs[0] / "report.html").write_text("")
    seen = read_page(page(tmp_path, *runs)).finish()
    assert capsys.readouterr().out == f"{tmp_path / 'comparison.html'}\n"
    assert "best run r1 lowest val loss" in seen.text and "optimizer.lr" in seen.text
    assert "same" not in seen.text and "run_dir" not in seen.text, "only what differs is shown"
    assert [row["href"] for row in seen.all("a")] == ["./runs/r2/report.html"], "a page that is there is linked"


def test_each_metric_has_one_chart_with_a_line_for_each_run_that_logged_it(tmp_path):
    runs = [trained(tmp_path / f"r{n}", 0.1, [3.0, 2.0, n]) for n in (1, 2)]
    runs.append(trained(tmp_path / "silent", 0.2, []))
    seen = read_page(page(tmp_path, *runs)).finish()
    titles = [alt for svg in seen.charts if (alt := svg["aria-label"])]
    assert [alt.partition(" over")[0] for alt in titles] == ["Validation loss", "Loss"]
    assert titles[0] == "Validation loss over step: r1 from 1.5 to 0.5; r2 from 1.5 to 1"
    assert [path["class"] for path in seen.all("path")] == ["line tone-a", "line tone-b"] * 2


def test_a_metric_that_was_logged_once_is_a_dot_for_each_run(tmp_path):
    runs = [trained(tmp_path / f"r{n}", 0.1, [float(n)]) for n in (1, 2)]
    seen = read_page(page(tmp_path, *runs)).finish()
    assert [dot["class"] for dot in seen.all("circle")] == ["tone-a", "tone-b"] * 2


def test_many_runs_have_one_legend_above_all_charts(tmp_path):
    for count, legends in ((4, 2), (5, 1)):
        runs = [trained(tmp_path / f"{count}" / f"r{n}", n, [3.0, 2.0]) for n in range(count)]
        html = page(tmp_path, *runs)
        assert (
            html.count('class="legend') == legends and html.partition("Curves</h2>")[2].count(">r3</span>") == legends
        )


def test_results_stand_before_settings_and_what_max_runs_have_before_what_few_do(tmp_path):
    runs = [trained(tmp_path / f"r{n}", 10.0**-n, [3.0], val_loss=1.0 + n, rows=7) for n in (1, 2, 3)]
    (runs[0] / "recipe.yaml").write_text("_target_: a.Train\nalone: 5\noptimizer: {lr: 3}\n")
    (table, *_) = re.findall(r"<thead>.*?</thead>", page(tmp_path, *runs), re.DOTALL)
    names = re.findall(r"<th[^>]*>([^<]+)<", table)
    assert names[:4] == ["run", "state", "val loss", "optimizer.lr"] and "alone" in names and "rows" not in names


def test_a_step_of_a_workflow_stands_beside_a_lone_training(tmp_path):
    lone = trained(tmp_path / "lone", 0.1, [3.0, 2.0])
    trained(tmp_path / "flow" / "train", 0.1, [3.0, 1.0])
    (tmp_path / "flow" / "recipe.yaml").write_text("_target_: a.Flow\n")
    seen = read_page(page(tmp_path, lone, tmp_path / "flow")).finish()
    assert [len(svg["aria-label"].split(";")) for svg in seen.charts] == [2, 2], "both lines are in one chart"


def test_more_runs_than_colours_are_drawn_on_a_ramp_and_those_left_out_are_said(tmp_path):
    runs = [trained(tmp_path / f"r{n:02d}", n, [3.0, 2.0]) for n in range(18)]
    seen = read_page(page(tmp_path, *runs)).finish()
    assert "The first 16 of 18 runs are shown." in seen.text and len(seen.all("path")) == 32


@pytest.mark.parametrize("count", [2, 5, 6, 8, 9, 13, 16])
def test_no_two_runs_are_drawn_alike_and_the_legend_draws_them_as_the_chart_does(tmp_path, count):
    runs = [trained(tmp_path / f"r{n:02d}", n, [3.0, 2.0 + n]) for n in range(count)]
    runs.append(trained(tmp_path / "r99", 99, [5.0]))  # a dot
    seen = read_page(page(tmp_path, *runs[:count])).finish()
    drawn = [path["class"] for path in seen.all("path")][:count]
    assert len(set(drawn)) == count
    keys = [key["class"].removeprefix("key ") for key in seen.all("span") if key.get("class", "").startswith("key ")]
    assert keys[:count] == drawn and set(keys) == set(drawn)


def test_a_glob_over_a_sweep_takes_its_runs_and_says_what_else_it_met(tmp_path, capsys):
    runs = [trained(tmp_path / "sweep" / f"{n}", n, [3.0, 2.0]) for n in range(3)]
    (tmp_path / "sweep" / "report.html").write_text("")
    (tmp_path / "sweep" / "not_begun").mkdir()
    seen = read_page(page(tmp_path, *sorted((tmp_path / "sweep").iterdir()))).finish()
    assert len(seen.all("path")) == 2 * len(runs)
    said = " ".join(capsys.readouterr().err.split())
    assert "left out" in said and "sweep/report.html" in said and "sweep/not_begun" in said


def test_a_class_is_short_where_its_last_name_says_which(tmp_path):
    for last, shown in (("b.Heun", {"Euler", "Heun"}), ("b.Euler", {"a.Euler", "b.Euler"})):
        runs = [trained(tmp_path / last / f"r{n}", 0.1, [1.0]) for n in range(2)]
        for run, kind in zip(runs, ("a.Euler", last), strict=True):
            (run / "recipe.yaml").write_text(f"_target_: a.Train\nsampler: {{_target_: {kind}}}\n")
        assert set(re.findall(r"<td[^>]*>([\w.]*(?:Euler|Heun))</td>", page(tmp_path, *runs))) == shown


@pytest.mark.parametrize("given", [["r1"], ["r1", "nowhere"]])
def test_one_run_or_no_run_is_refused(tmp_path, monkeypatch, capsys, given):
    monkeypatch.chdir(tmp_path)
    trained(Path("r1"), 0.1, [1.0])
    assert main(["compare", *given]) == 2 and not Path("comparison.html").exists()
    said = capsys.readouterr().err
    assert "a comparison needs two runs" in said or "nowhere is not a run folder" in said


def test_names_of_runs_and_values_are_text(tmp_path):
    runs = [trained(tmp_path / "<b>", 0.1, [1.0]), trained(tmp_path / "b", 0.1, [1.0])]
    (runs[0] / "recipe.yaml").write_text("_target_: a.Train\nname: '<script>'\n")
    assert not read_page(page(tmp_path, *runs)).finish().all("script")
