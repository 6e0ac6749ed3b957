"""Tests that a random LLaVA in a folder captions clips by their frames, keys and its weights."""

import shutil
from fractions import Fraction

import numpy as np
import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.curate.caption import local_model
from nemo_vfm.curate.caption.caption_types import Caption, View
from nemo_vfm.curate.caption.caption_writer import write_captions
from nemo_vfm.curate.caption.vlm_captioner import HuggingFaceCaptioner
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.shards.clip_id import Clip
from nemo_vfm.data.video.encode import encode_mp4
from tests.support.installed import skip_without
from tests.support.tiny_models import tiny_vlm

skip_without("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_vlm(tmp_path_factory.mktemp("models") / "tiny-vlm")


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """Four films of other pictures and lengths, as a viewer is shown them."""
    media = tmp_path_factory.mktemp("media")
    random = np.random.default_rng(0)
    made = []
    for number in range(4):
        frames = random.integers(0, 256, (4 + 3 * number, 48, 64, 3), np.uint8)
        encode_mp4(media / f"{number}.mp4", frames, 12)
        made.append(View(f"clip{number}", media / f"{number}.mp4", (0, len(frames)), True, 12.0))
    return made


def captioner(folder, **changes):
    return HuggingFaceCaptioner(**({"folder": folder, "num_frames": 3, "max_tokens": 6, "precision": "fp32"} | changes))


def said(folder, views, **changes):
    return {caption.key: caption for caption in captioner(folder, **changes).describe(iter(views))}


def test_a_clip_gets_the_same_words_in_any_order_and_they_depend_on_its_pictures(folder, views):
    forth, back = said(folder, views), said(folder, views[::-1])
    assert forth == back and set(forth) == {view.key for view in views}
    assert len({caption.text for caption in forth.values()}) > 1, "a random model, but not a blind one"


def test_a_batch_says_what_single_questions_do(folder, views):
    single, batch = said(folder, views), said(folder, views, batch_size=3)
    assert {key: caption.text for key, caption in batch.items()} == {key: c.text for key, c in single.items()}


def test_provenance_and_tokens_are_told(folder, views):
    caption = said(folder, views)["clip3"]
    # A picture is 4 patches; a byte is a token; the template frames them with "user: " and "assistant: ".
    expected = 3 * 4 + len("user: assistant: ") + len(captioner(folder).prompt.encode())
    assert caption.tokens_in == expected and caption.tokens_out == 6 and caption.status == "truncated"
    assert (caption.by, caption.model, len(caption.revision)) == ("hugging_face", "tiny-vlm", 16)


def test_an_answer_that_ends_is_no_truncated_one(folder, views, monkeypatch):
    whole = said(folder, views[:1])["clip0"]
    model, processor = local_model._load(folder, "sees", Precision("fp32"))
    letter = next(letter for letter in whole.text[1:] if letter.isascii())
    (token,) = processor.tokenizer(letter, add_special_tokens=False).input_ids
    monkeypatch.setattr(model.generation_config, "eos_token_id", [2, token])
    ended = said(folder, views[:1])["clip0"]
    assert ended.status == "success" and whole.text.startswith(ended.text) and letter not in ended.text
    assert 0 < ended.tokens_out < 6


@pytest.mark.parametrize(
    ("prompt", "answer", "text"),
    [("user: ", "<think>Hm.</think>\n\na cat", "a cat"), ("user: <think>\n", "Hm.</think>a cat", "a cat"),
     ("user: <think>\n", "Hm, it goes on", ""), ("user: ", "a cat", "a cat")],
)  # fmt: skip
def test_what_a_model_thinks_is_no_caption(folder, views, monkeypatch, prompt, answer, text):
    tokenizer = local_model._load(folder, "sees", Precision("fp32"))[1].tokenizer
    spelled = {True: answer, False: prompt}  # an answer is decoded from a list of tokens
    monkeypatch.setattr(tokenizer, "decode", lambda tokens, **_: spelled[isinstance(tokens, list)])
    assert said(folder, views[:1])["clip0"].text == text


def test_other_weights_another_prompt_or_other_pictures_are_another_fingerprint(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    assert captioner(other).fingerprint() == captioner(folder).fingerprint(), "where it lies does not matter"
    tiny_vlm(other, seed=1)
    prints = [captioner(folder).fingerprint(), captioner(other).fingerprint()]
    prints += [captioner(folder, **change).fingerprint() for change in ({"prompt": "x"}, {"num_frames": 2})]
    assert len(set(prints)) == 4


def test_a_damaged_clip_is_a_failure_and_the_others_of_its_batch_are_captioned(folder, views, tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    bad = View("bad", tmp_path / "bad.mp4", (0, 9), True, 12.0)
    found = said(folder, [views[0], bad, views[1]], batch_size=3)
    assert found["bad"].status == "error" and found["clip0"].has_text and found["clip1"].has_text


def test_captions_reach_the_records_and_the_model_is_not_loaded_again_for_nothing(folder, views, tmp_path, monkeypatch):
    def record():
        clip = Clip("0" * 64, 0, 13, 0, 13, Fraction(1, 12))
        return ClipRecord(clip, "3.mp4", (), 12.0, 64, 48, 1_000_000)

    (one,), (two,) = first, second = [record()], [record()]
    write_captions(first, {"vlm": captioner(folder)}, lambda _: views[3].media, tmp_path)
    monkeypatch.setattr("nemo_vfm.curate.caption.local_model._load", None)
    write_captions(second, {"vlm": captioner(folder)}, lambda _: views[3].media, tmp_path)
    assert one.caption and one.caption_by == "hugging_face" and one.caption_facts == two.caption_facts


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("chat_template.jinja", "no chat template"),
    ],
)
def test_a_folder_that_is_no_such_model_is_said_in_a_sentence(folder, views, tmp_path, spoil, message):
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / spoil).unlink()
    with pytest.raises(UserError, match=message):
        said(broken, views[:1])


def test_pickled_weights_are_refused_by_name(folder, views, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin, which could run code"):
        said(broken, views[:1])


def test_code_in_the_folder_is_not_run(folder, views, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "evil.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')\nclass M: pass\n")
    config = (broken / "config.json").read_text()
    own = '{"auto_map": {"AutoModelForImageTextToText": "evil.M", "AutoConfig": "evil.M"}, "model_type": "unheard_of"'
    (broken / "config.json").write_text(config.replace("{", own + ",", 1).replace('"model_type": "llava"', '"was": 1'))
    with pytest.raises(UserError):
        said(broken, views[:1])
    assert not (tmp_path / "canary").exists()


def test_a_caption_of_a_blank_answer_is_none():
    assert not Caption("k", status="blocked").has_text


@pytest.mark.parametrize("changes", [{"num_frames": 0}, {"max_tokens": 0}, {"batch_size": 0}, {"prompt": ""}])
def test_settings_that_cannot_be_are_refused(folder, changes):
    with pytest.raises(ValueError, match="must"):
        captioner(folder, **changes)
