"""MLflow run search."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient


def find_runs(
    client: "MlflowClient", experiment_ids: list[str], tags: Mapping[str, str]
) -> list[Any]:
    """Return the runs with all given tags, oldest first."""
    return search_runs(
        client, experiment_ids, " and ".join(f"tags.`{key}` = '{tags[key]}'" for key in tags)
    )


def search_runs(client: "MlflowClient", experiment_ids: list[str], condition: str) -> list[Any]:
    """Return all runs that match an MLflow filter string, oldest first (paginated)."""
    runs = []
    token = None
    while True:
        page = client.search_runs(
            experiment_ids, condition, order_by=["start_time ASC"], page_token=token
        )
        runs.extend(page)
        token = page.token
        if not token:
            return runs
