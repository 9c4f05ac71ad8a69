"""Tests of what one GPU can show. Each runs small on the CPU too, so that the tests themselves are
known to work.

``make test-gpu`` runs them on a GPU. They import neither ray, optuna, mlflow nor datasets.
"""

import pytest
import torch

from trainer.parallel.device import local_device

ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
CPU_HINT = pytest.param("cpu")


WAITING = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config, items):
    """Without a GPU one skipped test stands for all that need one."""
    waiting = [item for item in items if item.get_closest_marker("gpu")]
    if waiting and not torch.cuda.is_available():
        reason = f"no GPU that torch can use: {len(waiting)} tests of tests/gpu need one"
        config.stash[WAITING] = [item.nodeid for item in waiting]
        waiting[0].add_marker(pytest.mark.skip(reason=reason))
        items[:] = [item for item in items if item not in waiting[1:]]
        config.hook.pytest_deselected(items=waiting[1:])


def pytest_report_collectionfinish(config):
    """What ``make test-gpu`` would run, where there is no GPU."""
    waiting = config.stash.get(WAITING, [])
    if config.getoption("markexpr") != "gpu" or not waiting:
        return []
    return [f"on a GPU these {len(waiting)} tests would run:", *waiting]


@pytest.fixture(params=[CPU_HINT, ON_GPU])
def device(request) -> torch.device:
    """With torch set up as a run sets it up: by itself it attends by cuDNN from Hopper on."""
    return local_device(request.param)
