"""Tests that a run folder in any state gives one safe page that tells what its files say."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.types.job import LAUNCH, PARTS
from nemo_vfm.report import page as page_module
from nemo_vfm.report.page import all_sections, render, write
from nemo_vfm.report.parts import run_values as folder_module
from nemo_vfm.report.parts.head import head
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from tests.support import fake_run

Reader = Callable[[Path], Any]
SECTIONS = {"From files to clips", "Scores and thresholds", "Effect of each threshold", "Duplicate thresholds",
            "Contact sheets", "Captions", "Clips by bucket", "Repairs", "Encoded clips", "Throughput",
            "Training", "Rates and norms", "Samples during training", "Samples", "Provenance", "Texts during training",
            "Generated texts"}  # fmt: skip
URLS = ("src", "href", "poster", "action", "data", "srcset", "xlink:href", "background", "formaction")
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}</style>\x00\x1b[31m\u202e"


def assert_safe(seen: Any) -> None:
    names = {name for name, _ in seen.tags}
    assert not names & {"script", "iframe", "object", "embed", "link", "base", "form", "foreignobject", "audio"}
    for tag, attributes in seen.tags:
        assert not [name for name in attributes if name.startswith("on")]
        known = (
            "data:image/",
            "data:video/mp4;",
            "#",
            *(["./"] if tag == "a" else []),
        )  # that is followed, not fetched
        assert not [v for n, v in attributes.items() if n in URLS and not v.startswith(known)]
        assert "url(" not in attributes.get("style", "")


def titles(folder: Path) -> set[str]:
    return {section.title for section in all_sections(RunFolder.open(folder))}


def test_write_leaves_one_file_named_report_html_and_the_same_bytes_each_time(folder: Path):
    path = write(folder)
    first = path.read_bytes()
    assert path == folder / "report.html" and path.is_file()
    assert write(folder).read_bytes() == first


def test_a_finished_run_has_every_section(finished: Path, page: Reader):
    assert titles(finished) == SECTIONS
    assert "could not be" not in page(finished).text


def test_the_page_has_no_script_no_handler_and_nothing_to_fetch(finished: Path, page: Reader):
    html = render(finished)
    assert_safe(page(finished))
    assert "url(" not in html and "@import" not in html
    assert not re.search(r"https?://|//cdn|srcset", html)


def test_the_policy_forbids_scripts_and_the_network(finished: Path, page: Reader):
    metas = {m.get("http-equiv"): m.get("content", "") for m in page(finished).all("meta")}
    rules = dict(rule.strip().split(" ", 1) for rule in metas["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == rules["script-src"] == rules["connect-src"] == "'none'"
    assert rules["img-src"] == rules["media-src"] == "data:"


def test_the_funnel_shows_the_numbers_of_the_ledger(finished: Path):
    ledger = json.loads((finished / "curate/ledger.json").read_text())
    section = next(s for s in all_sections(RunFolder.open(finished)) if s.title == "From files to clips")
    rows = {}
    for row in re.findall(r"<tr class.*?</tr>", str(section.body), re.S):
        name = re.search(r'<th scope="row">(.*?)</th>', row)
        rows[name[1]] = re.findall(r'class="amount[^"]*">−?([^<]*)<', row)  # type: ignore[index]
    measures = ("files", "clips", "seconds")
    assert rows["in"] == [f"{ledger[m]['in']:g}" for m in measures]
    assert rows["kept"] == [f"{ledger[m]['kept']:g}" for m in measures]
    assert rows["motion"][1:] == [f"{ledger[m]['dropped']['motion']:g}" for m in measures[1:]]
    assert rows[f"failed: {fake_run.FAILURE}"][0] == "1"


def test_each_bar_of_the_funnel_begins_where_the_rest_ends_and_the_last_rest_is_what_was_kept(finished: Path):
    ledger = json.loads((finished / "curate/ledger.json").read_text())["clips"]
    section = next(s for s in all_sections(RunFolder.open(finished)) if s.title == "From files to clips")
    rows = re.findall(r'<tr class="(?:dropped|failed)".*?</tr>', str(section.body), re.S)
    left = 100.0
    for row in rows:
        clips = re.findall(r"<td\b.*?</td>", row, re.S)[1]
        rest, *gone = [float(width) for width in re.findall(r"width:([\d.]+)%", clips)]
        assert rest + sum(gone) == pytest.approx(left, abs=0.02)
        left = rest
    assert left == pytest.approx(100 * ledger["kept"] / ledger["in"], abs=0.02)


def test_a_ledger_that_does_not_add_up_is_called_out(folder: Path, page: Reader):
    ledger = json.loads((folder / "curate/ledger.json").read_text())
    ledger["clips"]["kept"] += 1
    fake_run.write_json(folder / "curate/ledger.json", ledger)
    assert "The clips do not add up" in page(folder).text


def test_headline_figures_come_from_the_steps(finished: Path, page: Reader):
    text = page(finished).text
    assert "colour right 88 % untrained 25 %" in text
    assert "direction right 75 % untrained 25 %" in text
    assert "total time 4 min 04 s 7 steps" in text


def test_pictures_and_videos_are_inside_the_page_and_described(finished: Path, page: Reader):
    seen = page(finished)
    videos = seen.all("video")
    assert len(videos) == 32 and all({"autoplay", "muted", "loop", "playsinline"} <= v.keys() for v in videos)
    assert all(v["aria-label"].strip() for v in videos)
    assert seen.all("img") and all(i["alt"].strip() for i in seen.all("img"))
    assert all(svg["aria-label"] and svg["role"] == "img" for svg in seen.charts)


def test_trained_stands_beside_untrained_with_what_was_measured(finished: Path, page: Reader):
    text = page(finished).text
    first = text[text.index("Samples Each") : text.index("a red square moves right")]
    assert re.search(
        r"trained ✓ colour is right ✓ direction is right untrained ✓ colour .* ✗ direction: none is wrong", first
    )
    assert "nearest training clip · 0." in first


def test_results_come_first_then_what_they_were_made_of_and_the_rest_is_folded(finished: Path, page: Reader):
    headings = re.findall(r'<h2 id="h\d+">(.*?)</h2>', render(finished))
    assert headings[0] == "Samples" and headings[-1] == "Provenance"
    places = [
        headings.index(name) for name in ("Samples", "Training", "Samples during training", "From files to clips")
    ]
    assert places == sorted(places)
    folded = {section.title for section in all_sections(RunFolder.open(finished)) if section.folded}
    assert set(headings[-len(folded) :]) == folded
    assert not [details for details in page(finished).all("details") if "open" in details]


def test_every_kept_clip_is_listed_with_the_way_to_its_picture(finished: Path, page: Reader):
    rows = RunFolder.open(finished).read_rows(finished / "curate/scores.parquet")
    kept = [row["clip_id"] for row in rows if row["decision"] == "kept"]
    (finished / "curate/thumbnails" / f"{kept[0]}.jpg").unlink()
    links = [link["href"] for link in page(finished).all("a") if "thumbnails" in link["href"]]
    assert links == [f"./curate/thumbnails/{clip}.jpg" for clip in kept[1:]]
    assert all((finished / link).is_file() for link in links) and f"{kept[0][:8]}" in page(finished).text


def test_prompts_stand_beside_the_previews_of_them(finished: Path, page: Reader):
    (finished / "train/samples/prompts.json").write_text('["a <b>red</b> square", 3]')
    assert "From the top left, row by row: a <b>red</b> square , 3" in page(finished).text


def test_a_video_has_the_picture_beside_it_as_its_poster(folder: Path, page: Reader):
    assert not [video for video in page(folder).all("video") if "poster" in video]
    thumbnail = next((folder / "curate/thumbnails").glob("*.jpg"))
    (folder / "sample/samples/000.jpg").write_bytes(thumbnail.read_bytes())
    (folder / "sample/samples/001.jpg").write_bytes(b"no picture")
    seen = page(folder)
    assert_safe(seen)
    assert [v["poster"][:23] for v in seen.all("video") if "poster" in v] == ["data:image/jpeg;base64,"]


def test_hostile_text_in_every_file_stays_text(folder: Path, page: Reader):
    for path in [*folder.rglob("*.json"), *folder.rglob("*.yaml"), *folder.rglob("*.jsonl")]:
        text = path.read_text()
        for word in (
            "red",
            "blur",
            "quickstart",
            "64x64x16",
            "grad_norm",
            "AMD",
            "sharpness",
            "moov",
            "shorter",
            "colour",
            "valley",
            "more frames",
        ):
            text = text.replace(
                word, json.dumps(HOSTILE)[1:-1] if path.suffix != ".yaml" else HOSTILE.replace("\x00", "")
            )
        path.write_text(text)
    seen = page(folder)
    assert_safe(seen)
    assert "<script>alert(1)</script>" in seen.text and "{{ 7 * 7 }}" in seen.text
    assert not re.search("[\x00-\x08\x0e-\x1f\u202e\ud800-\udfff]", seen.text)


@pytest.mark.parametrize("caption", ["x" * 1_000_000, HOSTILE * 1000, "\ud800\udfff", "a\r\nb", ""])
def test_a_caption_of_any_kind_is_cut_and_escaped(folder: Path, page: Reader, caption: str):
    samples = json.loads((folder / "sample/samples.json").read_text())
    samples[0]["prompt"] = caption
    fake_run.write_json(folder / "sample/samples.json", samples)
    seen = page(folder)
    assert_safe(seen)
    assert write(folder).stat().st_size < 3_000_000
    assert ("characters)" in seen.text) == (len(caption) > 200)


JSON_FILES = ("curate/ledger.json", "curate/rules.json", "encode/encode.json", "train/done.json", "sample/samples.json",
              "evaluate/evaluation.json", "evaluate/nearest.json", "manifest.json", "status.json")  # fmt: skip
DAMAGES = ("", "{", "[[[[", "[1, NaN, null]", '{"a": null}', '"text"', "[{}]", '{"clips": 3, "steps": []}')


@pytest.mark.parametrize("turn", range(len(DAMAGES)))
def test_damaged_json_files_never_stop_the_page(folder: Path, page: Reader, turn: int):
    """All at once, each in another way, and over the turns in every way."""
    damages = {name: DAMAGES[(place + turn) % len(DAMAGES)] for place, name in enumerate(JSON_FILES)}
    for name, damage in damages.items():
        (folder / name).write_text(damage)
    seen = page(folder)
    assert_safe(seen)
    said = {name for name in damages if f"{name} is not valid JSON" in seen.text}
    assert said == {name for name, damage in damages.items() if damage in ("", "{", "[[[[")}
    assert "This section failed" not in seen.text


def test_half_a_line_and_nan_in_the_metrics_are_counted_and_the_rest_drawn(folder: Path, page: Reader):
    path = folder / "train/metrics.jsonl"
    extra = (
        '{"step": 601, "loss": NaN}\n{"step": 602, "loss": Infinity}\n[1]\n{"step": "x", "loss": 1}\n{"step": 603, "lo'
    )
    path.write_text(path.read_text() + extra)
    text = page(folder).text
    assert "2 of 605 lines of train/metrics.jsonl could not be read: 603, 605." in text
    assert "2 values in metrics.jsonl are not finite" in text
    assert "Validation loss by noise level" in text


def test_metrics_written_twice_by_a_resumed_run_count_once_and_the_later_line_wins(folder: Path):
    path = folder / "train/metrics.jsonl"
    path.write_text('{"step": 1, "loss": 5}\n{"step": 2, "loss": 4}\n{"step": 2, "loss": 2}\n')
    html = render(folder)
    assert 'aria-label="Loss over step: smoothed from' in html and "training loss" in html
    assert re.search(r'training loss</span><span class="value">2<', html)


@pytest.mark.parametrize("name", ["scores.parquet", "thumbnails/" + "0" * 32 + ".jpg"])
def test_damaged_binary_files_are_said(folder: Path, page: Reader, name: str):
    (folder / "curate" / name).write_bytes(b"PAR1 this is not what it seems")
    text = page(folder).text
    assert "curate/scores.parquet could not be read" in text or "neither JPEG, PNG, WebP nor MP4" in text


def test_an_unfinished_run_says_which_steps_are_missing(folder: Path, page: Reader):
    import shutil

    for step in ("sample", "baseline", "evaluate"):
        shutil.rmtree(folder / step)
    fake_run.write_json(folder / "status.json", {"state": "running"})
    text = page(folder).text
    assert "This run has not finished. Unfinished: sample, baseline, evaluate." in text
    assert "Samples Each" not in text and "Training" in text


def test_a_failed_run_says_why(folder: Path, page: Reader):
    (folder / "train/done.json").unlink()
    fake_run.write_json(folder / "status.json", {"state": "failed", "error": "loss is not finite at step 17"})
    assert "This run failed: loss is not finite at step 17 Unfinished: train." in page(folder).text


def test_what_an_older_version_of_a_step_left_is_not_shown(folder: Path):
    before = render(folder)
    (folder / "_replaced").mkdir()
    (folder / "_replaced/ledger.json").write_text((folder / "curate/ledger.json").read_text())
    assert render(folder) == before


def test_of_a_very_long_table_the_beginning_is_shown_and_it_is_said(finished: Path, page: Reader, monkeypatch):
    monkeypatch.setattr(folder_module, "MAX_ROWS", 20)
    assert "Only the first 20 of 37 rows of curate/scores.parquet are shown." in page(finished).text


def test_an_empty_folder_gives_a_page_that_says_so(tmp_path: Path, page: Reader):
    assert "nothing to report yet" in page(tmp_path).text


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(NotADirectoryError, match="not a folder"):
        write(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("step", "present"),
    [("curate", "From files to clips"), ("train", "Samples during training"), ("sample", "Samples")],
)
def test_a_single_jobs_folder_has_its_sections(finished: Path, step: str, present: str):
    assert present in titles(finished / step)


def test_steps_stand_in_the_order_of_the_recipe_and_not_of_the_alphabet(finished: Path):
    assert [step.name for step in RunFolder.open(finished).steps] == ["", *fake_run.STEPS]


@pytest.mark.parametrize("target", ["../../outside.png", "{outside}", "link.png"])
def test_no_file_outside_the_run_folder_is_ever_shown(folder: Path, page: Reader, target: str):
    outside = folder.parent / "outside.png"
    outside.write_bytes((folder / "train/samples/step-00000000.png").read_bytes())
    (folder / "sample/link.png").symlink_to(outside)
    samples = json.loads((folder / "sample/samples.json").read_text())
    samples[0]["file"] = target.format(outside=outside)
    fake_run.write_json(folder / "sample/samples.json", samples)
    seen = page(folder)
    assert len(seen.all("video")) == 31
    assert "outside the run folder" in seen.text or "1 missing" in seen.text


def test_a_linked_table_outside_the_run_folder_is_not_read(folder: Path, page: Reader):
    outside = folder.parent / "ledger.json"
    (folder / "curate/ledger.json").rename(outside)
    (folder / "curate/ledger.json").symlink_to(outside)
    assert "ledger.json is outside the run folder" in page(folder).text


def test_the_page_stays_under_15_mb_and_says_what_was_left_out(folder: Path, page: Reader):
    big = (folder / "sample/samples/000.mp4").read_bytes() + bytes(2_000_000)
    for path in (folder / "sample/samples").glob("*.mp4"):
        path.write_bytes(big)
    assert "over this section's limit of 5.0 MB" in page(folder).text
    assert write(folder).stat().st_size < 15e6


@pytest.mark.parametrize("name", [name for name, _ in page_module._modules()])
@pytest.mark.slow
def test_a_section_that_fails_says_so_and_the_others_stand(finished: Path, monkeypatch, page: Reader, name: str):
    def fail(run, media):
        raise RuntimeError("<b>no luck</b>")
        yield

    module = dict(page_module._modules())[name]
    run = RunFolder.open(finished)
    others = titles(finished) - {section.title for section in module.sections(run, SectionMedia(run, 0))}
    monkeypatch.setattr(module, "sections", fail)
    seen = page(finished)
    assert "This section failed: RuntimeError: <b>no luck</b>" in seen.text
    assert others < titles(finished)


def test_contact_sheets_show_how_ids_begin_for_explain(finished: Path, page: Reader):
    import pyarrow.parquet as pq

    ids = [row["clip_id"] for row in pq.read_table(finished / "curate/scores.parquet").to_pylist()]
    shown = page(finished).text
    assert any(f"· {clip[:8]}" in shown for clip in ids) and "nemo-vfm explain RUN ID" in shown
    assert not any(clip[:9] in shown for clip in ids), "eight characters, no more"


def test_what_is_embedded_weighs_what_is_counted(folder: Path):
    for video in sorted((folder / "sample/samples").glob("*.mp4"))[:4]:
        video.with_suffix(".jpg").write_bytes(next((folder / "curate/thumbnails").glob("*.jpg")).read_bytes())
    run = RunFolder.open(folder)
    media = SectionMedia(run, 5_000_000)
    embedded = [media.embed(path) for path in sorted((folder / "sample/samples").glob("*.mp4"))]
    uris = [uri for one in embedded if one is not None for uri in (one.uri, one.poster) if uri is not None]
    weights = [len(base64.b64decode(uri.partition(",")[2])) for uri in uris]
    assert len(weights) == 16 + 4 and media.used_bytes == sum(weights)
    exact = SectionMedia(run, weights[0] + weights[1])
    first = sorted((folder / "sample/samples").glob("*.mp4"))[0]
    assert exact.embed(first).poster is not None and exact.used_bytes == exact.budget_bytes  # type: ignore[union-attr]
    scarce = SectionMedia(run, weights[0] + weights[1] - 1)
    assert scarce.embed(first).poster is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("created", "shown"),
    [
        ("2026-11-21T02:40:11+00:00", "2026-11-21 02:40 UTC"), ("2026-11-21T02:40:11Z", "2026-11-21 02:40 UTC"),
        ("2026-11-21T02:40:11.123456+00:00", "2026-11-21 02:40 UTC"), ("2026-11-21T02:40:11+02:00", "2026-11-21 02:40"),
        ("2026-11-21T02:40:11", "2026-11-21 02:40"), ("yesterday", "yesterday"),
    ],
)  # fmt: skip
def test_a_time_is_called_utc_only_where_it_is(folder: Path, created: str, shown: str):
    manifest = json.loads((folder / "manifest.json").read_text())
    fake_run.write_json(folder / "manifest.json", manifest | {"created": created})
    assert dict(head(RunFolder.open(folder)).facts)["started"] == shown


def test_folders_that_are_no_steps_are_no_steps(folder: Path):
    before = RunFolder.open(folder).steps
    for name in (LAUNCH, PARTS, "_replaced", ".hidden"):
        (folder / name).mkdir()
        fake_run.write_json(folder / name / "ledger.json", {"files": {"in": 1}})
    assert RunFolder.open(folder).steps == before
    (folder / "extra").mkdir()
    assert [step.name for step in RunFolder.open(folder).steps] == [*(step.name for step in before), "extra"]
