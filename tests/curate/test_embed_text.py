"""Tests that finished shards get embeddings of their captions, each encoded once."""

import inspect
import io
import json
import shutil

import pytest
import torch
from safetensors.torch import load, save

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.embed_text import EmbedText
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter
from nemo_vfm.data.video.encode import encode_mp4
from nemo_vfm.models.text_encoder import HashedNgrams
from tests.support.films import FPS, pan
from tests.support.repository import ROOT

CAPTIONS = ["a red circle", "a blue square", "a red circle", ""]


class Counting(HashedNgrams):
    """Notes what it is asked to encode, and stops where it is told to."""

    def __init__(self, stop=None, spoil=False, dim=16):
        super().__init__(dim=dim, max_tokens=4)
        self.seen, self.stop, self.spoil = [], stop, spoil

    def encode(self, captions):
        self.seen += captions
        if self.stop is not None and len(self.seen) > self.stop:
            raise KeyboardInterrupt
        text, mask = super().encode(captions)
        return (text * float("nan") if self.spoil else text), mask


@pytest.fixture
def shards(tmp_path):
    """Four samples with latents, and an old embedding in one."""
    folder = tmp_path / "in"
    with ShardWriter(folder, samples_per_shard=3) as writer:
        for number, caption in enumerate(CAPTIONS):
            members = {
                "latents.safetensors": save({"latents": torch.full((2, 3), float(number))}),
                "txt": caption.encode(),
                "json": json.dumps({"caption": caption, "clip": number}).encode(),
            }
            if number == 1:
                members["text.safetensors"] = save({"text": torch.zeros(1, 2), "mask": torch.ones(1).bool()})
            writer.write(f"{number:032x}", members, {"caption": caption, "fps": 8.0, "latent_shape": [2, 3]})
    return folder


def job(shards, encoder, **changes):
    return EmbedText(**({"shards": shards, "text_encoder": encoder, "dtype": "fp32", "batch_size": 1} | changes))


def test_every_sample_gets_the_embedding_of_its_own_caption_and_keeps_all_else(shards, tmp_path):
    outcome = job(shards, Counting()).run(Run(tmp_path / "run"))
    before, after = ShardSet(shards), ShardSet(tmp_path / "run/shards")
    assert outcome.figures == {"samples": 4} and [e.key for e in after.entries] == [e.key for e in before.entries]
    for old, new, caption in zip(before.entries, after.entries, CAPTIONS, strict=True):
        text, mask = Counting().encode([caption])
        stored = load(after.read(new, "text.safetensors"))
        assert torch.equal(stored["text"], text[0]) and torch.equal(stored["mask"], mask[0])
        for name in ("latents.safetensors", "txt"):
            assert after.read(new, name) == before.read(old, name)
        facts = json.loads(after.read(new, "json"))
        assert facts["clip"] == json.loads(before.read(old, "json"))["clip"] and "tokens=4" in facts["text_encoder"]
        assert new.index == old.index


def test_equal_captions_are_encoded_once_and_a_second_run_does_nothing(shards, tmp_path):
    first, second = Counting(), Counting()
    job(shards, first).run(Run(tmp_path / "run"))
    again = job(shards, second).run(Run(tmp_path / "run"))
    assert sorted(first.seen) == sorted(set(CAPTIONS)) and not second.seen and again.did_nothing


def test_every_setting_that_changes_an_output_is_part_of_what_it_is_made_of(shards, tmp_path):
    shutil.copytree(shards, tmp_path / "other")
    marker = tmp_path / "other/shards.json"
    marker.write_text(marker.read_text() + " ")
    changes = {"shards": tmp_path / "other", "text_encoder": Counting(dim=8), "dtype": "fp16", "samples_per_shard": 9}
    assert changes.keys() == inspect.signature(EmbedText).parameters.keys() - {"batch_size", "copy_to"}
    base = {"shards": shards, "text_encoder": Counting()}
    first, *others = (EmbedText(**base | given)._state() for given in ({}, *({n: c} for n, c in changes.items())))
    assert len({first, *others}) == 1 + len(changes) and EmbedText(**base, batch_size=3)._state() == first


def test_a_killed_run_goes_on_and_gives_the_bytes_of_a_whole_one(shards, tmp_path):
    job(shards, Counting()).run(Run(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        job(shards, Counting(stop=2)).run(Run(tmp_path / "run"))
    assert not (tmp_path / "run/shards").exists()
    rest = Counting()
    job(shards, rest).run(Run(tmp_path / "run"))
    assert len(rest.seen) == 1 and not (tmp_path / "run/work").exists()
    for path in sorted((tmp_path / "whole/shards").iterdir()):
        assert path.read_bytes() == (tmp_path / "run/shards" / path.name).read_bytes()


def test_another_encoder_encodes_again(shards, tmp_path):
    job(shards, Counting()).run(Run(tmp_path / "run"))
    wider = Counting(dim=24)
    job(shards, wider).run(Run(tmp_path / "run"))
    entry = ShardSet(tmp_path / "run/shards").entries[0]
    assert wider.seen and load(ShardSet(tmp_path / "run/shards").read(entry, "text.safetensors"))["text"].shape == (
        4,
        24,
    )


def test_an_embedding_that_is_not_finite_stops_the_run_and_nothing_is_left_half_done(shards, tmp_path):
    with pytest.raises(DataError, match="NaN"):
        job(shards, Counting(spoil=True)).run(Run(tmp_path / "run"))
    assert not (tmp_path / "run/shards").exists()


def test_captions_that_the_encoder_cuts_are_counted(shards, tmp_path, capsys):
    job(shards, HashedNgrams(dim=16, max_tokens=2)).run(Run(tmp_path / "run"))
    assert json.loads((tmp_path / "run/embed_text.json").read_text())["cut"] == 3
    assert "3 of 4 captions are longer" in capsys.readouterr().err
    job(shards, HashedNgrams(dim=16, max_tokens=3)).run(Run(tmp_path / "run"))
    assert json.loads((tmp_path / "run/embed_text.json").read_text())["cut"] == 0


def test_a_folder_without_shards_is_said(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="holds no shards"):
        job(tmp_path / "none", Counting()).run(Run(tmp_path))


def test_a_t5_from_a_folder_embeds_clips_in_its_own_width(shards, tmp_path):
    pytest.importorskip("transformers", reason="needs the extra transformers")
    from nemo_vfm.models.transformers_text import TransformersTextEncoder
    from tests.support.tiny_models import tiny_t5

    encoder = TransformersTextEncoder(folder=tiny_t5(tmp_path / "t5"), max_tokens=20, precision="fp32")
    job(shards, encoder, dtype="bf16", batch_size=3).run(Run(tmp_path / "run"))
    made = ShardSet(tmp_path / "run/shards")
    stored = [load(made.read(entry, "text.safetensors")) for entry in made.entries]
    assert [tuple(s["text"].shape) for s in stored] == [(20, 16)] * 4 and stored[0]["text"].dtype == torch.bfloat16
    assert [int(s["mask"].sum()) for s in stored] == [13, 14, 13, 1] and encoder.num_cut(CAPTIONS) == 0
    assert TransformersTextEncoder(folder=tmp_path / "t5", max_tokens=13).num_cut(CAPTIONS) == 1
    assert TransformersTextEncoder(folder=tmp_path / "t5", max_tokens=12, drop_tokens=1).num_cut(CAPTIONS) == 1


def test_the_encode_recipe_takes_a_t5(tmp_path):
    pytest.importorskip("transformers", reason="needs the extra transformers")
    from tests.support.tiny_models import tiny_t5

    film = io.BytesIO()
    encode_mp4(film, pan(0), FPS)
    facts = {"caption": "a wall", "width": 128, "height": 96, "num_frames": 24, "fps": 12.0, "duration_s": 2.0}
    with ShardWriter(tmp_path / "clips") as writer:
        writer.write("0" * 32, {"mp4": film.getvalue(), "txt": b"a wall"}, facts)
    words = ["text_encoder=t5", f"text_encoder.folder={tiny_t5(tmp_path / 't5')}", "text_encoder.max_tokens=9"]
    recipe = str(ROOT / "recipes/curation/encode.yaml")
    assert main(["run", recipe, f"shards={tmp_path / 'clips'}", f"run_dir={tmp_path / 'run'}", *words]) == 0
    made = ShardSet(tmp_path / "run/shards")
    stored = load(made.read(made.entries[0], "text.safetensors"))
    assert stored["text"].shape == (9, 16) and stored["mask"].sum() == len("a wall") + 1
