"""Makes small real inputs for each value that a recipe leaves to the user."""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import cv2
import pytest
import torch
from safetensors.torch import save

from nemo_vfm.cli.main import main
from nemo_vfm.config import build, check, compose
from nemo_vfm.config.tree import find
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.text.tokenize import TokenizeText
from tests.support.coloured import NAMES, coloured_shards
from tests.support.criteo_files import write_criteo
from tests.support.encoders import labelled_clips, tiny_clip, tiny_head
from tests.support.films import pan, texture, write_film
from tests.support.kuairand_files import kuairand_rows, write_kuairand
from tests.support.repository import ROOT
from tests.support.session_chunk import SCHEMA, session_chunk
from tests.support.striped import microscope

Given = Callable[[Path], list[str]]
#: What a user has in the working directory, and never showed us.
OWN_CLASSES = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self, width: int = 4):
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    test_step = validation_step

    def forward(self, batch):
        return self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Numbers(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(torch.arange(32.0).reshape(8, 4) / 32, batch_size=2, shuffle=True)

    def val_dataloader(self):
        return DataLoader(torch.arange(32.0).reshape(8, 4) / 32, batch_size=2)

    test_dataloader = predict_dataloader = val_dataloader


class Ear:
    def transcribe(self, samples):
        return "a hum"

    def sample_rate_hz(self):
        return 16_000

    def fingerprint(self):
        return "ear"
"""
CAPTIONS = ("a red circle moving left", "a blue square moving up", "a green triangle", "a yellow cross")


def striped_png(folder: Path) -> Path:
    """A folder with one image of 16 bits; the recipe asks for the packages of TIFF whatever it holds."""
    pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    folder.mkdir()
    assert cv2.imwrite(str(folder / "cells.png"), microscope(1, 128)[1])
    return folder


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for seed in range(2):
        write_film(folder / f"{seed}.mp4", pan(seed))
    return folder


@pytest.fixture(scope="session")
def media(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Films and pictures with captions beside them."""
    folder = tmp_path_factory.mktemp("media")
    for number in range(8):
        film = next(videos.glob(f"{number % 2}.mp4"))
        (folder / f"{number}.mp4").write_bytes(film.read_bytes())
        (folder / f"{number}.txt").write_text(CAPTIONS[number % 4])
        cv2.imwrite(str(folder / f"still{number}.png"), texture(number))
    return folder


@pytest.fixture(scope="session")
def clips(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips") / "run"
    recipe = str(ROOT / "recipes/curation/clips.yaml")
    assert main(["run", recipe, "--overlay", "smoke", f"run_dir={folder}", f"source.path={videos}"]) == 0
    return folder / "shards"


def one_tar(folder: Path, path: Path) -> Path:
    """A folder's videos and captions as WebDataset has them."""
    with tarfile.open(path, "w") as tar:
        for file in sorted(folder.glob("*.mp4")):
            tar.add(file, file.name)
            tar.add(file.with_suffix(".txt"), f"{file.stem}.txt")
    return path


def random_clip(folder: Path) -> Path:
    pytest.importorskip("transformers", reason="needs the extra transformers")
    from tests.support.tiny_models import tiny_clip

    return tiny_clip(folder)


def random_vlm(folder: Path) -> Path:
    from tests.support.tiny_models import tiny_vlm

    return tiny_vlm(folder)


def random_transnet(folder: Path) -> Path:
    from safetensors.torch import save_file

    from nemo_vfm.models.transnet import TransNetV2

    torch.manual_seed(0)
    folder.mkdir()
    save_file(TransNetV2().state_dict(), folder / "model.safetensors")
    return folder


def random_language_model(folder: Path) -> Path:
    """A language model that has learnt nothing, and its tokenizer."""
    from nemo_vfm.models.convert.gpt_folder import write_gpt
    from nemo_vfm.models.gpt import GPT
    from nemo_vfm.text.bpe_learner import ByteLevelBPE
    from tests.support.tiny_tokenizers import LINES

    if folder.exists():
        return folder
    model = GPT(vocab=300, width=32, depth=1, heads=2, mlp_hidden=32)
    write_gpt(model, dict(model.named_parameters()), folder, max_tokens=64)
    ByteLevelBPE(vocab_size=300).learn(LINES, folder)
    return folder


def lines_of_text(folder: Path) -> Path:
    from tests.support.tiny_tokenizers import LINES

    folder.mkdir()
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    return folder


def latents_for(recipe: Path, folder: Path) -> Path:
    """Latent shards as the recipe's own codec, text encoder and buckets make them, of random pixels."""
    packed = "packed" in recipe.name
    job = build(compose(recipe, [f"data.{'data.' * packed}shards={folder}"], overlays=["smoke"]))
    buckets = (job.data.data if packed else job.data).buckets
    shapes = [(n, b.num_frames, b.height, b.width) for n, b in buckets.buckets.items()] if buckets else []
    shapes = shapes[:1] or [("square", 9, 48, 48)]
    if packed:
        shapes += [("still", 1, 48, 48), ("wide", 9, 48, 80)]
    with ShardWriter(folder) as writer:
        for number in range(6):
            name, frames, height, width = shapes[number % len(shapes)]
            pixels = torch.rand(1, 3, frames, height, width, generator=torch.Generator().manual_seed(number)) * 2 - 1
            latents = job.task.codec.encode(pixels)[0].contiguous()
            text, mask = job.task.text_encoder.encode([CAPTIONS[number % 4]])
            members = {
                "latents.safetensors": save({"latents": latents}),
                "text.safetensors": save({"text": text[0].contiguous(), "mask": mask[0].contiguous()}),
                "txt": CAPTIONS[number % 4].encode(),
            }
            facts = {"caption": CAPTIONS[number % 4], "fps": 8.0, "bucket": name, "latent_shape": list(latents.shape)}
            writer.write(f"{number:032x}", members, facts)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the small training leaves under the same overlay."""
    folder = tmp_path_factory.mktemp("train")
    recipe = ROOT / "recipes/diffusion/train_small.yaml"
    shards = latents_for(recipe, folder / "shards")
    words = ["run", str(recipe), "--overlay", "smoke", f"run_dir={folder / 'run'}", f"data.shards={shards}"]
    assert main(words) == 0
    return folder / "run/checkpoints"


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty short texts, a byte a token."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "texts.jsonl").write_text(
        "".join(f'{{"text": "{caption} {n}"}}\n' for n in range(10) for caption in CAPTIONS)
    )
    TokenizeText(path=folder / "texts.jsonl", tokenizer=ByteTokenizer(), processes=1).run(Run(folder / "run"))
    return folder / "run/tokens"


@pytest.fixture(scope="session")
def feature_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 60 sessions."""
    folder = tmp_path_factory.mktemp("feature_table") / "table"
    writer = FeatureTableWriter(folder, SCHEMA)
    writer.add(session_chunk(60))
    writer.finish()
    return folder


def write_clicks(path: Path, num_rows: int) -> Path:
    """A log in CSV, in which a quarter of the rows are clicks and some prices are missing."""
    rows = (f"{n % 4 // 3},u{n % 9},{n * n % 40},c{n % 3},{n % 7 or ''}\n" for n in range(num_rows))
    path.write_text("click,user,item,category,price\n" + "".join(rows))
    return path


@pytest.fixture
def given(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """Changes that give every value a recipe leaves to the user, by the class and the argument it is for.

    A recipe that wants something new fails here and says so: add a line.
    """
    makers: dict[tuple[str | None, str], Callable[[Path], Path]] = {
        ("nemo_vfm.curate.sources.video_source.Folder", "path"): lambda _: request.getfixturevalue("videos"),
        ("nemo_vfm.curate.encode_shards.EncodeShards", "shards"): lambda _: request.getfixturevalue("clips"),
        ("nemo_vfm.curate.caption.check_captions.CheckCaptions", "shards"): lambda _: coloured_shards(
            tmp_path / "clips", NAMES
        ),
        ("nemo_vfm.curate.caption.likeness.ClipLikeness", "folder"): lambda _: random_clip(tmp_path / "model"),
        ("nemo_vfm.curate.embed_text.EmbedText", "shards"): lambda _: request.getfixturevalue("clips"),
        ("nemo_vfm.curate.prepare_energon.WriteEnergon", "shards"): lambda _: shutil.copytree(
            request.getfixturevalue("clips"), tmp_path / "shards"
        ),
        ("nemo_vfm.curate.redecide.Redecide", "curated"): lambda _: request.getfixturevalue("clips").parent,
        ("nemo_vfm.curate.sink.export.Export", "shards"): lambda _: request.getfixturevalue("clips"),
        ("nemo_vfm.curate.deduplicate.Deduplicate", "shards"): lambda _: [str(request.getfixturevalue("clips"))],
        ("nemo_vfm.models.scorer.Scorer", "folder"): lambda _: tiny_clip(tmp_path / "clip"),
        ("nemo_vfm.models.scorer.Scorer", "head"): lambda _: tiny_head(
            tmp_path / "head.safetensors", 12, 1024, 128, 64, 16, 1
        ),
        ("nemo_vfm.curate.split.transnet_splitter.TransNetV2Split", "weights"): lambda _: random_transnet(
            tmp_path / "cuts"
        ),
        ("nemo_vfm.curate.caption.vlm_captioner.HuggingFaceCaptioner", "folder"): lambda _: random_vlm(
            tmp_path / "vlm"
        ),
        ("nemo_vfm.data.sources.shard_data.ShardData", "shards"): lambda recipe: (
            labelled_clips(tmp_path / "labelled", scale=3)
            if "scorer" in recipe.name
            else latents_for(recipe, tmp_path / "latents")
        ),
        ("nemo_vfm.data.sources.streamed.StreamedTars", "tars"): lambda _: one_tar(
            request.getfixturevalue("media"), tmp_path / "videos.tar"
        ),
        ("nemo_vfm.nemo.transcribe.Transcribe", "shards"): lambda _: request.getfixturevalue("clips"),
        ("nemo_vfm.nemo.transcribe.Transcribe", "videos"): lambda _: request.getfixturevalue("videos"),
        ("nemo_vfm.data.sources.video_folder.VideoFolder", "path"): lambda _: request.getfixturevalue("media"),
        **dict.fromkeys(
            [
                ("nemo_vfm.models.convert.gpt_folder.gpt_of_folder", "folder"),
                ("nemo_vfm.data.tokenizers.folder_tokenizer.FolderTokenizer", "folder"),
            ],
            lambda _: random_language_model(tmp_path / "language"),
        ),
        **dict.fromkeys(  # sources of TokenData
            [(None, "folder"), ("nemo_vfm.data.tokens.token_data.TokenSource", "folder")],
            lambda _: request.getfixturevalue("tokens"),
        ),
        ("nemo_vfm.workflow.Workflow", "input"): lambda _: lines_of_text(tmp_path / "texts"),
        ("nemo_vfm.text.documents.Documents", "path"): lambda _: lines_of_text(tmp_path / "texts"),
        ("nemo_vfm.text.tokenize.TokenizeText", "path"): lambda _: (
            request.getfixturevalue("tokens").parents[1] / "texts.jsonl"
        ),
        **dict.fromkeys(
            [
                ("nemo_vfm.recsys.feature_table_data.FeatureTableData", "folder"),
                ("nemo_vfm.recsys.feature_table.table_reader.FeatureTable", "folder"),
            ],
            lambda _: request.getfixturevalue("feature_table"),
        ),
        ("nemo_vfm.curate.restore.destripe_images.DestripeImages", "input"): lambda _: striped_png(
            tmp_path / "striped"
        ),
        ("nemo_vfm.recsys.sources.criteo_tsv.CriteoTsv", "paths"): lambda _: [
            str(write_criteo(tmp_path / "criteo.tsv", 500))
        ],
        ("nemo_vfm.recsys.sources.kuairand_csv.KuaiRandCsv", "paths"): lambda _: [
            str(write_kuairand(tmp_path / "kuairand.csv", kuairand_rows(500)))
        ],
        ("nemo_vfm.recsys.sources.text_log.TextLog", "paths"): lambda _: [
            str(write_clicks(tmp_path / "clicks.csv", 500))
        ],
        ("nemo_vfm.synth.sample_videos.Sample", "checkpoint"): lambda _: request.getfixturevalue("checkpoint"),
        ("nemo_vfm.synth.prompts.PromptList", "given"): lambda _: [
            str(next(request.getfixturevalue("media").glob("*.mp4")))
        ],
    }

    def words(recipe: Path) -> list[str]:
        if recipe.parent.name == "world_model":
            pytest.importorskip("diffusers", reason="needs the extra diffusers")
        composed = compose(recipe, overlays=["smoke"])
        missing = [problem.path for problem in check(composed) if problem.kind == "missing"]
        if own := [path for path in missing if path.endswith("._target_")]:
            (tmp_path / "own_classes.py").write_text(OWN_CLASSES)
            monkeypatch.chdir(tmp_path)
        kinds = {"module": "Net", "data": "Numbers", "speech": "Ear"}
        own_words = [f"{path}=own_classes.{kinds[path.split('.')[-2]]}" for path in own]
        missing = [path for path in missing if path not in own]
        owners = [
            (find(composed.root, path.rpartition(".")[0]) if "." in path else composed.root, path) for path in missing
        ]
        whole = ["--trust=own_classes", *own_words] if own else []
        if find(composed.root, "loop.phases"):
            whole += ["loop.duration=null"]  # the overlay's length would cut them short
        if recipe.parent.name == "world_model" and "data.path" in missing:
            whole += ["data.buckets=quickstart"]  # the sizes of pretrained models are no small ones
        return whole + [f"{path}={makers[owner.target(), path.rpartition('.')[2]](recipe)}" for owner, path in owners]

    return words
