# For GPU nodes: CUDA PyTorch, nemo_vfm and what its recipes need.
#   docker build -t nemo-vfm .
#   docker run --gpus all --ipc=host -v "$PWD/runs:/workspace/runs" nemo-vfm run recipes/diffusion/dit_xl.yaml
# Any image with Python 3.11 or 3.12 and torch 2.11-2.13 will do: --build-arg BASE=...
# Its RUN lines are tested in an environment with torch for CPUs; no image has been built of it. Build it once on your own
# base before relying on it.

ARG BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime
# hadolint ignore=DL3006
FROM ${BASE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_BREAK_SYSTEM_PACKAGES=1 \
    PYTHONUNBUFFERED=1
WORKDIR /opt/nemo_vfm

# The tested pins less the torch line: the base image's torch was built for its CUDA and has to stay. Written back as
# a constraint, so that nothing installed later replaces it.
COPY constraints.txt ./
RUN grep -v -E '^torch==' constraints.txt > image-constraints.txt \
 && python -c "from importlib.metadata import version; print('torch==' + version('torch'))" >> image-constraints.txt

COPY setup.py pyproject.toml MANIFEST.in README.md LICENSE ./
COPY nemo_vfm nemo_vfm
COPY launcher launcher
COPY conf conf
COPY recipes recipes
# What the components of all recipes need, but of those for nemo-toolkit, which needs an environment of its own.
ARG EXTRAS=diffusers,functions,megatron,microscopy,text,transformers
RUN python -m pip install -c image-constraints.txt ".[${EXTRAS}]"

# Transformer Engine is compiled against the torch that is there, by a base with CUDA's compiler: --build-arg TE=1 and
# --build-arg BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-devel.
ARG TE=0
RUN if [ "${TE}" = 1 ]; then python -m pip install --no-build-isolation -c image-constraints.txt "nemo_vfm[te]"; fi

# Ordinary user: files in a mounted run folder then do not belong to root. --build-arg UID="$(id -u)" makes them yours;
# UID=0 keeps root where a cluster's container runtime maps users by itself.
ARG UID=1000
RUN mkdir -p /workspace/runs && chown -R "${UID}" /workspace
USER ${UID}
WORKDIR /workspace
ENV HOME=/workspace
RUN nemo-vfm doctor
ENTRYPOINT ["nemo-vfm"]
CMD ["--help"]
