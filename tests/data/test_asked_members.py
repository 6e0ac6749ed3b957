"""Tests that members which data is asked for by name reach the model on every path, and that bad ones are said."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from nemo_vfm.cli.main import main
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.sources.blend import Blend, BlendSource
from nemo_vfm.data.sources.packed import PackedLatents
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.diffusion.denoising_task import Denoise
from nemo_vfm.diffusion.objective import FlowMatching
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.text_encoder import HashedNgrams
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from tests.data.conftest import actions
from tests.data.test_shard_data import LONG, MIXED, SMALL, contents, take
from tests.support.repository import ROOT
from tests.support.toy import ToyModel, ToyTask

asked = partial(ShardData, batch_size=3, members=["actions"])


def numbers_of(batch) -> list[float]:
    return [float(one) - 0.5 for one in batch.members["actions"].flatten(1).mean(1)]


def test_members_arrive_by_every_way_of_reading_in_pieces_and_held_out(latent_shards):
    folder = latent_shards(MIXED * 2, beside=actions)
    data = asked(shards=folder, val_fraction=0.2)
    batches = take(data, 16)
    assert data._open().reader._loading._in_place._known, "read in place, from the second batch of a shape on"
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
    ({"other": torch.zeros(3, 2)}, r"one tensor called actions .* but holds other \(3, 2\)"),
])  # fmt: skip
def test_a_bad_member_is_a_fault_and_zeros(bad, said, latent_shards, caplog):
    bad = {"actions.safetensors": save(bad)}
    data = asked(shards=latent_shards([SMALL] * 9, beside=lambda n: bad if n == 4 else actions(n)))
    for batch in take(data, 6):
        for key, weight, one in zip(batch.keys, batch.weight_B.tolist(), batch.members["actions"], strict=True):
            assert (weight, float(one[0, 0])) == ((0.0, 0.0) if int(key, 16) == 4 else (1.0, int(key, 16) + 0.5))
    assert data.faults.by_sample == {f"{4:032x}": 2} and re.search(said, " ".join(caplog.text.split()))


def test_samples_without_it_are_counted_and_a_misspelt_name_is_refused(latent_shards, caplog):
    folder = latent_shards([SMALL] * 9, beside=lambda n: actions(n) if n % 3 else {})
    take(data := asked(shards=folder), 1)
    assert data.num_train_samples() == 6 and "members in" not in caplog.text
    assert "cannot be trained on: 3 no actions.safetensors" in " ".join(caplog.text.split())
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
    assert [numbers_of(one) for one in first.alone()] == [[number] for number in numbers_of(first)]
    sources = {"with": BlendSource(asked(shards=folder)), "without": BlendSource(asked(shards=plain, members=()))}
    assert {tuple(batch.members) for batch in take(Blend(sources=sources), 6)} == {("actions",), ()}
    ragged = lambda n: {"actions.safetensors": save({"actions": torch.zeros(3 if MIXED[n] == LONG else 1, 2)})}  # noqa: E731
    shards = latent_shards(MIXED, name="ragged", beside=ragged)
    assert {one.members["actions"].shape[1] for one in take(asked(shards=shards), 9)} == {1, 3}, "one a bucket"
    with pytest.raises(UserError, match="packed need actions of one shape"):
        take(PackedLatents(data=asked(shards=shards), budget_tokens=8), 1)


class Steered(nn.Linear):
    def forward(self, *, latents_BCTHW, noise_B, text_BLD, text_mask_BL, fps_B, actions) -> Tensor:
        return latents_BCTHW + super().forward(actions.flatten(1))[:, :, None, None, None]


def test_a_model_learns_from_the_actions_that_the_page_writes_and_resumes_equal(latent_shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    latent_shards([[2, 1, 2, 2]] * 15, name="runs/encode/shards")
    save_file({f"{n:032x}": torch.full((3, 2), float(n)).double() for n in range(15)}, "actions.safetensors")
    exec(re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/video/loading.md").read_text(), re.DOTALL)[0], {})
    task = Denoise(objective=FlowMatching(), codec=WaveletCodec(), text_encoder=HashedNgrams(), text_dropout=0.0)

    def train(folder: str, steps: int, model=partial(Steered, 6, 2), task=task) -> Tensor:
        loop = Loop(duration=Duration(steps, "steps"), checkpoint=SaveCheckpoints(every_steps=3))
        data, adam = asked(shards="runs/robot/shards", num_workers=1), partial(torch.optim.Adam, lr=0.1)
        Train(model=model, data=data, task=task, optimizer=adam, loop=loop).run(Run(Path(folder)))
        return load_file(f"{folder}/checkpoints/step-{steps:08d}/model.safetensors")["weight"]

    whole, half = train("whole", 6), train("parts", 3)
    assert not torch.allclose(whole, half) and torch.equal(whole, train("parts", 6))
    with pytest.raises(UserError, match=r"data.members: samples come with actions, but ToyModel takes no argument of"):
        train("blind", 6, ToyModel)
    with pytest.raises(UserError, match="but ToyTask hands no members to the model"):
        train("toy", 6, task=ToyTask())


def test_check_refuses_a_model_that_takes_no_such_argument_where_it_is_asked_for(capsys):
    assert main(["check", "diffusion/train_small", "data.shards=somewhere", "data.members=[actions]"]) != 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert re.search("data.members.*but DiT takes no argument of that name", said)
