"""Versions that the locks name."""

import re

from tests.paths import ROOT


def test_the_compiler_of_the_lock_for_gpus_is_of_the_runtimes_cuda():
    """One of another minor version refuses the headers that torch brings."""
    lock = (ROOT / "constraints-gpu.txt").read_text()
    releases = dict(re.findall(r"^nvidia-(cuda-\w+|nvvm)==(\d+\.\d+)", lock, re.MULTILINE))
    parts = {"cuda-nvcc", "cuda-crt", "cuda-cccl", "nvvm", "cuda-nvrtc"}
    assert parts < releases.keys()
    assert {name: releases[name] for name in parts} == dict.fromkeys(
        parts, releases["cuda-runtime"]
    )
