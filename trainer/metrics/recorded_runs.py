"""Runs in an MLflow store, found by their tags."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient


def find_runs(
    client: "MlflowClient", experiment_ids: list[str], tags: Mapping[str, str]
) -> list[Any]:
    """Return runs that carry all tags, oldest first."""
    return search_runs(
        client, experiment_ids, " and ".join(f"tags.`{key}` = '{tags[key]}'" for key in tags)
    )


def search_runs(client: "MlflowClient", experiment_ids: list[str], condition: str) -> list[Any]:
    """Return runs that fulfill a condition in MLflow's words, oldest first, however many."""
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
