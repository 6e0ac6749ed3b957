"""Tests that short prompts name nothing that their captions lack, and that captions come from shards and files."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.synth.given.document_rows import ClipCaptions
from nemo_vfm.synth.given.row_source import ListedRows
from nemo_vfm.synth.pipelines.upsampler import Upsampler, as_typed, new_words
from tests.support.told_models import ToldModel, ledger_of, ran

CAPTION = ("Two brown horses are running across a wet beach in Denmark at low tide, while 3 gulls circle above them "
           "and the sun sets behind dark clouds.")  # fmt: skip


def pairs(folder: Path, *prompts: str, caption: str = CAPTION, changes: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What becomes of a caption with prompts that a model writes for it, one after the other."""
    path = folder / "captions.jsonl"
    path.write_text("".join(json.dumps({"caption": f"{caption} {number}."}) + "\n" for number in range(len(prompts))))
    rows = f"pipeline.rows={{_target_: nemo_vfm.synth.given.row_file.RowFile, path: {path}}}"
    model = ToldModel(lambda messages: prompts[int(messages[0]["content"].split("\n</caption>")[0].split()[-1][:-1])])
    return ran(folder, "upsampler", rows, "rows=99", "min_yield=0.01", *changes, generator=model)


@pytest.mark.parametrize("prompt", [
    "two horses run on the beach", "Brown horse runs, beach, cloud", "show me horses in Denmark please",
    "Horses at low tide", "a video of 3 gulls",
])  # fmt: skip
def test_a_prompt_in_words_of_the_caption_is_kept_in_any_form_of_them(tmp_path: Path, prompt: str) -> None:
    (row,) = pairs(tmp_path, f'Prompt: "{prompt}"')
    system, user, caption = row["messages"]
    assert system["role"] == "system" and user["content"] == prompt and caption["content"] == f"{CAPTION} 0."
    assert row["parents"] == {"given": "captions.jsonl line 1"} and row["verifier"].startswith("words/1")


def test_what_the_caption_lacks_and_what_is_too_long_or_too_short_is_dropped_by_its_rule(tmp_path: Path) -> None:
    prompts = ["two horses run on the beach", "two zebras on the beach", "horses", "4 gulls above a beach", CAPTION]
    rows = pairs(tmp_path, *prompts, "", changes=("pipeline.prompt_words=[2, 12]",))
    assert len(rows) == 1
    told = ledger_of(tmp_path)
    assert told["dropped"] == {"a prompt that names something not in its caption": 2,
                               "a prompt of fewer than 2 or more than 12 words": 2}  # fmt: skip
    assert sum(told["failed"].values()) == 1
    (tmp_path / "wide").mkdir()
    wide = ("pipeline.prompt_words=[1, 99]", "pipeline.max_share=0.3", "pipeline.max_new_words=1")
    kept = pairs(tmp_path / "wide", *prompts, "Horses in Norway", changes=wide)
    assert [row["messages"][1]["content"] for row in kept] == [*prompts[:3]]
    assert ledger_of(tmp_path / "wide")["dropped"] == {"a prompt that is hardly shorter than its caption": 1,
                                                       "a prompt that names something not in its "
                                                       "caption": 2}  # fmt: skip


def test_captions_that_are_too_short_or_too_long_are_counted_and_nobody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    with pytest.raises(NemoVfmError, match=r"0 answers requested.*Most often: a caption of fewer than 20 words"):
        pairs(tmp_path / "short", "a dog", caption="A dog sleeps.")
    with pytest.raises(NemoVfmError, match=r"0 answers requested.*Most often: a caption of more than 25 words"):
        pairs(tmp_path, "a dog", changes=("pipeline.max_caption_words=25",))


def test_captions_are_read_from_the_shards_of_a_curation(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards") as writer:
        for number, caption in enumerate([CAPTION, "", f"{CAPTION} More."]):
            writer.write(f"clip-{number}", {"json": b"{}"}, {"caption": caption, "fps": 8.0})
    shards = f"{{_target_: nemo_vfm.synth.given.document_rows.ClipCaptions, shards: {tmp_path / 'shards'}}}"
    rows = ran(tmp_path, "upsampler", f"pipeline.rows={shards}", generator=ToldModel(lambda messages: "brown horses"))
    assert [row["parents"]["given"] for row in rows] == ["clip clip-0", "clip clip-2"]
    assert [row["messages"][-1]["content"] for row in rows] == [CAPTION, f"{CAPTION} More."]
    assert ledger_of(tmp_path)["failed"] == {"the clip has no caption": 1}
    with pytest.raises(UserError, match="there is no folder of shards"):
        list(ClipCaptions(shards=tmp_path / "nowhere").given_rows())


def test_words_are_new_in_no_form_of_the_caption_and_requests_have_words_of_their_own() -> None:
    assert new_words("Please make a video of the running horse's beaches", CAPTION) == []
    assert new_words("cities and carried puppies", "A city; she carries a puppy.") == []
    assert new_words("a zebra near the running stream", CAPTION) == ["zebra", "near", "stream"]
    for answer in (
        '"Red kite"',
        "Prompt: Red kite",
        "Here it is:\n\u201cRed kite\u201d",
        "**User request:** Red\n kite",
    ):
        assert as_typed(answer) == "Red kite", answer


def test_settings_that_cannot_be_are_refused() -> None:
    rows = ListedRows(rows=[{"caption": CAPTION}])
    with pytest.raises(ValueError, match=r"prompt_words \[3, 2\]"):
        Upsampler(rows=rows, prompt_words=(3, 2))
    with pytest.raises(ValueError, match="max_share 2"):
        Upsampler(rows=rows, max_share=2)
