"""Files that the runs of a sweep sent to MLflow."""

import urllib.parse
from pathlib import Path
from typing import Any


def artifact(client: Any, run_id: str, artifacts: str, name: str, scratch: Path) -> Path | None:
    """A file of a run; None where it recorded none.

    Args:
        client: of MLflow.
        run_id: whose file.
        artifacts: URI of the run's artifacts. Where they lie on this machine, MLflow itself would ask the store.
        name: of the file.
        scratch: folder to download it into otherwise.
    """
    parts = urllib.parse.urlsplit(artifacts)
    if parts.scheme in ("", "file"):
        path: Path | None = Path(urllib.parse.unquote(parts.path)) / name
    else:
        path = _downloaded(client, run_id, name, scratch / run_id)
    return path if path is not None and path.is_file() else None


def _downloaded(client: Any, run_id: str, name: str, folder: Path) -> Path | None:
    from mlflow.exceptions import MlflowException

    folder.mkdir(exist_ok=True)
    try:
        return Path(client.download_artifacts(run_id, name, str(folder)))
    except (MlflowException, OSError):
        return None
