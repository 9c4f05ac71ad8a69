# loptune with vLLM, for machines with NVIDIA GPUs and driver 580 or newer. Never built by the project's own tests.
#
#   docker build -t loptune .
#   docker run --rm --gpus all --shm-size 16g -v "$PWD:/work" loptune trainer run kk_0.5b
#
# Below a cluster's Ray image: --build-arg BASE=rayproject/ray:2.60.0-py311-gpu
ARG BASE=python:3.11-slim
FROM ${BASE}
USER root
# Triton compiles kernels at the first start, by gcc; hub data sets may need git.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/*
COPY . /opt/loptune
# pytest for `make -C /opt/loptune test-gpu`, which docs/guides/gpu.md starts with.
RUN python -m pip install --no-cache-dir -c /opt/loptune/constraints-gpu.txt '/opt/loptune[all,vllm]' pytest
# Models and compiled kernels outlive the container where /work does.
ENV HF_HOME=/work/.cache/huggingface LOPTUNE_CACHE=/work/.cache/loptune
# Not root: a reward or a model's code then has no rights over the container. Another owner of the mounted folder:
# docker run --user "$(id -u):$(id -g)".
RUN getent passwd 1000 || useradd --uid 1000 --create-home loptune
RUN mkdir -p /work && chown 1000:1000 /work
USER 1000
WORKDIR /work
