"""Check that every node of a cluster sees a sweep's folder, model and data."""

import socket
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from loptune.errors import ConfigError, MissingError, one_line
from sweep.record.sweep_record import SweepRecord
from sweep.trials.nodes import is_reachable, missing_paths
from trainer.tracking.mlflow_store import sqlite_path, tracking_uri

_ANSWER_TIMEOUT_S = 60.0


def check_shared_files(sweep: SweepRecord) -> None:
    """Check that every node sees the sweep's folder and the program's files.

    Raises:
        ConfigError: the MLflow store is a local file, which other machines cannot write.
        MissingError: a node does not see a path (the error names both), does not answer, or cannot
            import loptune.
    """
    spec = sweep.spec
    folder = sweep.folder
    nodes = [node for node in ray.nodes() if node["Resources"].get("CPU") and is_reachable(node)]
    hosts = [node["NodeManagerHostname"] for node in nodes]
    other_hosts = [host for host in hosts if host != socket.gethostname()]
    settings = spec.program.tracking_settings
    uri = tracking_uri(settings, folder.runs_dir)
    if other_hosts and not settings.offline and sqlite_path(uri) is not None:
        raise ConfigError(
            f"{other_hosts[0]} cannot write to the MLflow store, because it is a file: {uri}",
            "tracking.uri",
            "start `mlflow server` and set MLFLOW_TRACKING_URI=http://HOST:5000, or add --offline",
            key="tracking.uri",
            code="store-is-a-file",
        )
    probe = folder.root / f"reach-{uuid.uuid4().hex}"
    probe.touch()
    try:
        paths = [probe, *spec.program.paths(spec.values_of_trials())]
        for node, path in unseen_paths(nodes, paths):
            place = where = str(path)
            if path == probe:
                place, where = str(folder.runs_dir), "--runs-dir"
            raise MissingError(
                f"node {node} does not see {place}",
                where,
                "move it to a folder that all nodes mount at the same path",
                code="path-not-shared",
            )
    finally:
        probe.unlink()


def unseen_paths(
    nodes: Sequence[dict[str, str]], paths: Sequence[Path]
) -> Iterator[tuple[str, Path]]:
    """Yield the host name of each node with each path that it does not see.

    Raises:
        MissingError: a node does not answer in time, or cannot import loptune.
    """
    look = ray.remote(num_cpus=0, max_retries=0)(missing_on_this_node)
    answers = {}  # answers of all nodes, which are queried at the same time
    for node in nodes:
        on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        answer = look.options(scheduling_strategy=on_node).remote(list(paths))
        answers[answer] = node["NodeManagerHostname"]
    for answer, host in answers.items():
        try:
            missing = ray.get(answer, timeout=_ANSWER_TIMEOUT_S)
        except ray.exceptions.GetTimeoutError as error:
            raise MissingError(
                f"node {host} does not answer within {_ANSWER_TIMEOUT_S:.0f} s",
                "--address",
                "wait until it is less busy, or stop Ray on it",
                code="node-too-busy",
            ) from error
        except ray.exceptions.RayError as error:
            raise MissingError(
                f"node {host} cannot run loptune: {one_line(error)}",
                "--address",
                "install the same Python, Ray and loptune on every node",
                code="node-cannot-import",
            ) from error
        for path in missing:
            yield host, path


def missing_on_this_node(paths: Sequence[Path]) -> list[Path]:
    """Return the paths that this node does not see. Fails if it cannot import loptune."""
    import sweep.space.spec  # noqa: F401  fails on a node that cannot import loptune

    return missing_paths(paths)
