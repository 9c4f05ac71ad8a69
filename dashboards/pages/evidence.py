"""What all confirmed sweeps of a store say about each update rule: one HTML file, and the same as values of JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dashboards.pages.html import cell, render_page, render_table
from dashboards.pictures.evidence import Evidence, Measured, forest, gathered
from dashboards.sweep import Sweep
from trainer.files import write_atomically

_CLOSING = (
    "A setting is a model with a task. Only differences on fresh seeds count, and only those of rules that were "
    "finalists: where a rule was tried and not taken along, it was hardly good, so the mean over the settings that "
    "are left is rather too high. Tournaments take every rule along."
)


def evidence_json(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Rules with their settings and summary, and what does not count."""
    found, left = gathered(sweeps)
    rules = [{**asdict(one), "sentence": one.sentence} for one in found]
    return {"rules": rules, "left_out": [asdict(one) for one in left]}


def write_evidence(sweeps: Sequence[Sweep], uri: str, path: Path) -> tuple[list[Evidence], list[Measured]]:
    """Write the page; return the evidence, and what does not count."""
    found, left = gathered(sweeps)
    pictures = [forest(one, f"evidence-{place}") for place, one in enumerate(found)]
    none = "No sweep of this store has measured a rule on fresh seeds: `sweep confirm NAME` does."
    told = [
        f"{one.rule}: shown to be better than {one.baseline} in {one.better} of {len(one.measured)} settings"
        for one in found
    ]
    told = [f"{'; '.join(told)}." if told else none, _CLOSING]
    counted = {one.sweep for rule in found for one in rule.measured}
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    meta = f"{len(counted)} of {len(sweeps)} sweeps of {uri} count, read on {now}."
    rows = [[cell(text) for text in (one.sweep, one.model, one.task, one.rule, one.left_out)] for one in left]
    table = render_table(["sweep", "model", "task", "rule", "why not"], rows)
    page = render_page(
        "Evidence on update rules", meta, told, {"Rules": pictures}, table, heading="What does not count"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    return found, left
