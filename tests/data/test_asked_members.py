"""Tests that members which data is asked for by name reach the model on every path, and that bad ones are said."""

import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import nn

from nemo_vfm.cli.main import main
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.sources.blend import Blend, BlendSource
from nemo_vfm.data.sources.packed import PackedLatents
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from tests.data.conftest import actions
from tests.data.test_shard_data import MIXED, SMALL, contents, take
from tests.diffusion.test_denoising_task import task as denoise
from tests.support.repository import ROOT
from tests.support.toy import ToyModel, ToyTask

asked = partial(ShardData, batch_size=3, members=["actions"])


def numbers_of(batch) -> list[float]:
    return [float(one) - 0.5 for one in batch.members["actions"].flatten(1).mean(1)]


def said_by(capsys) -> str:
    return " ".join("".join(capsys.readouterr()).split())


def test_members_arrive_by_every_way_of_reading_in_pieces_and_held_out(latent_shards):
    folder = latent_shards(MIXED * 2, beside=actions)
    data = asked(shards=folder, val_fraction=0.2)
    batches = take(data, 16)
    reader, samples = data._open().reader._loading, data._open().samples
    assert reader._in_place._known and samples.locate(samples.entries[0], reader._names), "they are read in place"
    assert all(numbers_of(one) == [int(key, 16) for key in one.keys] for one in [*batches, *data.val_dataloader()])
    copied = asked(shards=folder, val_fraction=0.2, num_workers=2, verify=True)
    copied._open().samples.locate = lambda *_: None
    assert contents(take(copied, 9, first=7)) == contents(batches[7:])
    assert [numbers_of(one) for one in batches[0].cut(3)] == [[int(key, 16)] for key in batches[0].keys]
    assert batches[0].to("meta").members["actions"].is_meta


@pytest.mark.parametrize(("bad", "said"), [
    ({"actions": torch.full((3, 2), torch.nan)}, "its actions holds NaN or infinity"),
    ({"actions": torch.zeros(2, 3)}, r"its actions is torch.float32 \(2, 3\), expected torch.float32 \(3, 2\)"),
    ({"actions": torch.zeros(3, 2), "latents": torch.zeros(SMALL)}, "one tensor called actions .* but holds"),
])  # fmt: skip
def test_a_bad_member_is_a_fault_and_zeros(bad, said, latent_shards, capsys):
    bad = {"actions.safetensors": save(bad)}
    data = asked(shards=latent_shards([SMALL] * 9, beside=lambda n: bad if n == 4 else actions(n)))
    for batch in take(data, 6):
        for key, weight, one in zip(batch.keys, batch.weight_B.tolist(), batch.members["actions"], strict=True):
            assert (weight, float(one[0, 0])) == ((0.0, 0.0) if int(key, 16) == 4 else (1.0, int(key, 16) + 0.5))
    assert data.faults.by_sample == {f"{4:032x}": 2} and re.search(said, said_by(capsys))


def test_samples_without_it_are_counted_and_a_misspelt_name_is_refused(latent_shards, capsys):
    folder = latent_shards([SMALL] * 9, beside=lambda n: actions(n) if n % 3 else {})
    take(data := asked(shards=folder), 1)
    assert data.num_train_samples() == 6
    assert "trained on: 3 no actions.safetensors" in (said := said_by(capsys)) and "members in" not in said
    with pytest.raises(
        UserError, match=r"has a member action.safetensors; .* there are actions; did you mean actions\?"
    ):
        take(asked(shards=folder, members=["action"]), 1)
    for wrong in ("actions", ["Actions"], ["class"], ["latents"], ["a", "a"], ["a.b"]):
        with pytest.raises(ValueError, match="member"):
            asked(shards=folder, members=wrong)


def test_packs_and_blends_carry_members_and_packs_need_one_shape(latent_shards):
    folder, plain = latent_shards(MIXED, beside=actions), latent_shards([SMALL] * 5, name="plain")
    first = take(PackedLatents(data=asked(shards=folder), budget_tokens=8), 1)[0]
    assert len(first) > 2 and numbers_of(first) == [int(key, 16) for key in first.keys]
    assert [numbers_of(one) for one in first.unpack()] == [[number] for number in numbers_of(first)]
    sources = {"with": BlendSource(asked(shards=folder)), "without": BlendSource(asked(shards=plain, members=()))}
    assert {tuple(batch.members) for batch in take(Blend(sources=sources), 6)} == {("actions",), ()}


def test_buckets_of_one_latent_shape_may_differ_in_members_but_not_packs(tmp_path):
    with ShardWriter(tmp_path) as writer:
        for number, shape in enumerate([(3,), (1, 1, 1, 1)] * 5):  # files of one length
            found = {"latents": torch.zeros(SMALL), "actions": torch.full(shape, number + 0.5)}
            members = {f"{name}.safetensors": save({name: tensor}) for name, tensor in found.items()}
            facts = {"bucket": f"{len(shape)}", "fps": 8.0, "caption": "", "latent_shape": SMALL}
            writer.write(f"{number:032x}", members, facts)
    for batch in take(asked(shards=tmp_path), 8):
        assert numbers_of(batch) == [int(key, 16) for key in batch.keys] and batch.weight_B.all()
    with pytest.raises(UserError, match="packed need actions of one shape"):
        take(PackedLatents(data=asked(shards=tmp_path), budget_tokens=8), 1)


class Steered(nn.Linear):
    def forward(self, *, latents_BCTHW, noise_B, text_BLD, text_mask_BL, fps_B, actions):
        return latents_BCTHW + super().forward(actions.flatten(1))[:, :, None, None, None]


def test_a_model_learns_from_what_the_page_writes_resumes_equal_and_another_is_refused(
    latent_shards, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    latent_shards([[2, 1, 2, 2]] * 15, name="runs/encode/shards")
    save_file({f"{n:032x}": torch.full((3, 2), float(n)).double() for n in range(15)}, "actions.safetensors")
    exec(re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/video/loading.md").read_text(), re.DOTALL)[0], {})

    def train(folder, steps, model=partial(Steered, 6, 2), task=denoise(text_dropout=0.0)):
        loop = Loop(duration=Duration(steps, "steps"), checkpoint=SaveCheckpoints(every_steps=3))
        data, adam = asked(shards="runs/robot/shards", num_workers=1), partial(torch.optim.Adam, lr=0.1)
        Train(model=model, data=data, task=task, optimizer=adam, loop=loop).run(Run(tmp_path / folder))
        return load_file(tmp_path / f"{folder}/checkpoints/step-{steps:08d}/model.safetensors")["weight"]

    whole, half = train("whole", 6), train("parts", 3)
    assert not torch.allclose(whole, half) and torch.equal(whole, train("parts", 6))
    with pytest.raises(UserError, match=r"data.members: samples come with actions, but ToyModel takes no argument of"):
        train("blind", 6, ToyModel)
    with pytest.raises(UserError, match="but ToyTask hands no members to the model"):
        train("toy", 6, task=ToyTask())
    assert main(["check", "diffusion/train_small", "data.shards=somewhere", "data.members=[actions]"]) != 0
    assert re.search("data.members.*but DiT takes no argument of that name", said_by(capsys))
