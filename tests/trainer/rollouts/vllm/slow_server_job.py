"""One rank of a run whose collectives time out early and whose server loads weights slowly."""

import time
from pathlib import Path
from typing import Any

import torch

from tests.conftest import random_model
from tests.invariants.ranks import be_a_rank
from trainer.config.rollout import VllmConfig
from trainer.parallel.ranks import join_ranks
from trainer.rollouts.vllm import http_transfer
from trainer.rollouts.vllm import server as vllm_server


def wait_for_the_other(folder: Path) -> None:
    """Wait until both ranks have imported everything, however busy the machine is."""
    (folder / f"ready-{time.monotonic_ns()}").touch()
    while len(list(folder.glob("ready-*"))) < 2:
        time.sleep(0.05)


def work(folder: Path, job: dict[str, Any]) -> str:
    """Send a model's weights to the server."""
    model = random_model()
    http_transfer.CHUNK_BYTES = job["chunk_bytes"]
    # the server has no model
    vllm_server.check_synced_weights = lambda *_: 0.0  # type: ignore[assignment]
    wait_for_the_other(folder)
    join_ranks(job["timeout_s"], torch.device("cpu"))
    settings = VllmConfig(server_base_urls=[job["url"]])
    vllm_server.VllmServerEngine(settings, 64, "float32").sync_weights(model)
    return "synced"


if __name__ == "__main__":
    be_a_rank(work)
