"""A sweep's saved view in MLflow: columns, sorting and charts, stored in MLflow's own format.

MLflow 3.17 stores a saved view of the runs' page as a tag of the experiment,
``mlflow.sharedViewState.ID``: an envelope with the page's state as JSON. The page opens with it at
``?viewStateShareKey=ID``.
"""

import json
import time
import uuid
from pathlib import Path
from typing import Any

from dashboards.trial import sign_of
from loptune.mlflow_runs import SEED_TAG, STATE_TAG, SWEEP_TAG, VARIANT_TAG
from loptune.parameter_names import short_names
from sweep.space.spec import SweepSpec
from trainer.tracking.mlflow_store import connect, retry

TAG = "mlflow.sharedViewState."
_KIND_TAG = "mlflow.experimentKind"  # without this tag MLflow opens its GenAI traces page
SCORE = "final/score"
NAME = "attributes.`Run Name`"
WIDTH = 120  # width of a column [px]
# constant parts of every view: page, section, and each kind of chart
_TEMPLATE = json.loads(Path(__file__).with_name("view.json").read_text("utf-8"))
# namespace for ids of views and charts, which are derived from names
_SPACE = uuid.UUID("5d9d2c5e-6f0c-4a57-9c43-5a2b0f1e7a10")


def save_view(uri: str, spec: SweepSpec) -> str:
    """Save a sweep's view unless it exists: a user may have edited it in MLflow.

    Return the path of the MLflow page that opens it; empty if the experiment does not exist.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    client = connect(uri)
    stored = retry(lambda: client.get_experiment_by_name(spec.experiment), uri)
    if stored is None:
        return ""
    if _KIND_TAG not in stored.tags:
        client.set_experiment_tag(stored.experiment_id, _KIND_TAG, "custom_model_development")
    key = view_id(spec.name)
    if TAG + key not in stored.tags:
        now = round(time.time() * 1000)
        envelope = {"name": f"sweep {spec.name}", "createdAt": now, "updatedAt": now}
        tag = json.dumps({**envelope, "state": json.dumps(view_state(spec))})
        retry(lambda: client.set_experiment_tag(stored.experiment_id, TAG + key, tag), uri)
    query = f"workflowType=machine_learning&viewStateShareKey={key}"
    return f"/#/experiments/{stored.experiment_id}/runs?{query}"


def view_id(name: str) -> str:
    """Return the id of the view of a sweep, of a section in it, or of a chart."""
    return uuid.uuid5(_SPACE, name).hex


def view_state(spec: SweepSpec) -> dict[str, Any]:
    """Return the state of MLflow's runs page that shows a sweep: the best trial first, then its
    charts.
    """
    searched = [key for key in spec.searched if spec.parameters[key].kind != "value"]
    rule = spec.program.always_shown
    # Searched keys of the rule, other searched keys, then the rule's other keys: a window shows
    # only two or three columns.
    parameters = [key for key in searched if key in rule]
    parameters += [key for key in searched if key not in rule]
    parameters += [key for key in rule if key not in searched]
    columns = [f"metrics.`{SCORE}`"]
    columns += [f"params.`{key}`" for key in parameters]
    columns += [f"tags.`{tag}`" for tag in (SEED_TAG, VARIANT_TAG, STATE_TAG)]
    section = view_id("section")
    charts = [{**chart, "metricSectionId": section} for chart in _charts(spec, searched)]
    return {
        **_TEMPLATE["page"],
        "searchFilter": f"tags.`{SWEEP_TAG}` = '{spec.name}'",
        "orderByKey": columns[0],
        "orderByAsc": sign_of(spec.objective.mode) < 0,
        # All trials have the same devices, so duration is proportional to cost.
        "selectedColumns": [*columns, "attributes.`Duration`", "attributes.`Description`"],
        "columnOrder": [NAME, *columns, "duration", "attributes.`Description`"],
        "columnWidths": {NAME: 3 * WIDTH, **dict.fromkeys(columns, WIDTH)},
        "compareRunSections": [
            {**_TEMPLATE["section"], "uuid": section, "name": f"Sweep {spec.name}"}
        ],
        "compareRunCharts": charts,
    }


def _charts(spec: SweepSpec, searched: list[str]) -> list[dict[str, Any]]:
    metric = spec.objective.metrics[0]
    charts = {
        f"{metric} of every trial, a color per update rule": {
            **_TEMPLATE["lines"],
            "metricKey": metric,
            "selectedMetricKeys": [metric],
        },
        "All settings and the score": {
            **_TEMPLATE["parallel"],
            "selectedParams": searched,
            "selectedMetrics": [SCORE],
        },
    }
    for key, name in short_names(searched).items():
        charts[f"Score against {name}"] = {
            "type": "SCATTER",
            "xaxis": {"key": key, "type": "PARAM"},
            "yaxis": {"key": SCORE, "type": "METRIC"},
        }
    named = []
    for name, chart in charts.items():
        named.append({**_TEMPLATE["chart"], **chart, "uuid": view_id(name), "displayName": name})
    return named
