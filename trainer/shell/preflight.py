"""Whatever fails soon is tried first: before torch and the model, which take seconds to minutes."""

import errno
import os
import socket
import sys
from pathlib import Path

from rewards.sandbox import RewardPool, ScoringFailedError
from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError
from trainer.problems.rows import check_fields, is_file_source, read_rows
from trainer.tracking.mlflow_store import check_store, tracking_uri
from trainer.tracking.writers import check_installed


def share_cores() -> None:
    """Keep threads from busy waiting where other programs use the cores; before torch is imported."""
    if "OMP_WAIT_POLICY" not in os.environ and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        print("other programs use the cores: OMP_WAIT_POLICY=PASSIVE", flush=True)


def check_early(config: TrainConfig, runs_dir: Path | None = None, *, trains: bool = True) -> None:
    """Read a row of every data file, import the reward, and look for the places that a run reports to.

    What is only evaluated needs no training data (``trains``), and without ``runs_dir`` nothing is reported.

    Raises:
        ConfigError, MissingError, StorageError: what would keep the run from starting.
    """
    for dataset in (*(config.data.train if trains else ()), *config.evaluation.sets.values()):
        check_fields(dataset)
        if is_file_source(dataset):
            read_rows(dataset.model_copy(update={"limit": 1}))
    own = [name for name in config.reward.functions if ":" in name]
    if own:
        print(f"importing {', '.join(own)}", file=sys.stderr, flush=True)
    try:
        reward = config.reward
        environment = reward.environment
        RewardPool(
            reward.functions, timeout_s=1, memory_mb=reward.memory_mb, workers=1, environment=environment
        ).close()
    except (ValueError, ScoringFailedError) as error:
        raise ConfigError(str(error), "reward.functions", "repair its module, or name another") from error
    if runs_dir is not None:
        check_installed(config)
        if not config.tracking.offline:
            check_store(tracking_uri(config.tracking, runs_dir))


def check_port(port: int, again: str, host: str = "127.0.0.1") -> None:
    """Refuse a port that cannot be listened on; ``again`` is the command to repeat with another.

    Raises:
        ConfigError: it is in use, or the host is not one of this machine.
    """
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        said = "is in use" if error.errno == errno.EADDRINUSE else f"of {host} cannot be used: {error.strerror}"
        raise ConfigError(f"port {port} {said}", "--port", f"{again} --port {port + 1}") from None
