"""The page of MLflow that shows the trials of a sweep."""

from urllib.parse import quote, urlencode

from trainer.tracking.mlflow_store import connect


def runs_page(uri: str, experiment: str, sweep: str) -> str:
    """The path of MLflow's table of a sweep's trials by score, the parent left out so that charts show trials."""
    found = connect(uri).get_experiment_by_name(experiment)
    if found is None:
        return ""
    query = {
        "workflowType": "machine_learning",  # MLflow opens its page of GenAI traces otherwise
        "searchFilter": f"tags.`loptune.sweep` = '{sweep}' AND tags.`loptune.trial` LIKE '%'",
        "orderByKey": "metrics.`final/score`",
        "orderByAsc": "false",
    }
    return f"/#/experiments/{found.experiment_id}/runs?{urlencode(query, quote_via=quote)}"
