"""The verdict on runs of any program. Importing this module loads no other library; `judge` needs
pandas and SciPy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from dashboards.results import Results
    from dashboards.sources.run_columns import RunColumns
    from dashboards.statistics.arm_table import ArmRow
    from dashboards.statistics.verdict import Verdict


@dataclass(frozen=True)
class Judgement:
    """A verdict and the sentences that state it; ``str()`` joins the sentences."""

    results: "Results"
    sentences: Sequence[str]  # verdict, next step, evidence
    page: Path | None = None  # file of the report, if it was written

    @classmethod
    def of(cls, results: "Results") -> "Judgement":
        """Judge results, whether they come from a table of runs or from a sweep."""
        from dashboards.headline import verdict_sentences

        return cls(results, verdict_sentences(results))

    @property
    def arms(self) -> "list[ArmRow]":
        """Every configuration compared with the baseline, the baseline first; empty in the cases of
        `Results.arm_table`.
        """
        return self.results.arm_table

    @property
    def verdict(self) -> "Verdict | None":
        """The numbers behind the verdict, on fresh seeds if any were run. None if the baseline has
        no score, or if rules were tuned separately: see `TunedRules.compared`.
        """
        if self.results.arms:
            return None
        return self.results.answer

    def write_report(self, folder: str | Path) -> Path:
        """Write ``report.html`` and ``trials.csv``, and return the path of the page.

        Raises:
            StorageError: the folder cannot be created.
            OSError: the files cannot be written.
        """
        from dashboards.pages.report import write_pages

        return write_pages(self.results, Path(folder))

    def fields(self) -> dict[str, Any]:
        """Return the ``--json`` fields: numbers and sentences."""
        from dashboards.json_fields import (
            arm_fields,
            cost_fields,
            guard_fields,
            next_fields,
            rule_fields,
            verdict_fields,
        )

        results = self.results
        tuned = results.tuned_rules.compared if results.arms else []
        return {
            "sentences": self.sentences,
            "next": next_fields(results),
            "notes": results.warnings,
            "budget": None if results.budget is None else vars(results.budget),
            "costs": cost_fields(results),
            "verdict": None if self.verdict is None else verdict_fields(results, self.verdict),
            "arms": [arm_fields(arm) for arm in self.arms],
            "tasks": {
                task: [arm_fields(arm) for arm in part.arm_table]
                for task, part in results.by_task.items()
            },
            "scores": {
                score: [arm_fields(arm) for arm in part.arm_table]
                for score, part in results.by_score.items()
            },
            "guards": [] if self.verdict is None else guard_fields(results, self.verdict.best),
            "tuned": [rule_fields(results, result) for result in tuned],
        }

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def judge(
    table: "pd.DataFrame",
    *,
    by: Sequence[str],
    baseline: Mapping[str, Any],
    score: str | Sequence[str],
    seed: str = "",
    fresh: "bool | pd.DataFrame" = False,
    **options: Any,
) -> Judgement:
    """Return the verdict on a table of runs.

    Args:
        table: one row per run, or per evaluation if there is a step column.
        by: columns that define a configuration.
        baseline: column -> value of the configuration to beat.
        score: score column, or several columns that the option ``composite`` combines into one
            score.
        seed: seed column. By default the column with the name of a seed, such as ``seed``,
            ``params.seed`` or ``random_state``; if there is none, runs are treated as independent.
        fresh: True if these seeds were not used to select anything; or a second table with the
            chosen configurations on fresh seeds.
        **options: the other fields of `dashboards.sources.run_columns.RunColumns`; ``composite``:
            ``mean``, ``iqm``, or ``NAME=WEIGHT,...`` of the scores; ``guard``: columns on which a
            better configuration must not be worse than the baseline, as ``METRIC:MARGIN``;
            ``second``: column that the report plots against the score, as ``METRIC`` or
            ``METRIC:min``.

    Raises:
        ConfigError: the table does not allow a verdict.
    """
    from dashboards.results import Guard
    from dashboards.sources.run_columns import RunColumns
    from dashboards.sources.scores import (
        check_combinations,
        combined,
        composite_of,
        guards_of,
        parse_second,
        score_names,
        with_second,
    )

    composite = options.pop("composite", "mean")
    guards = guards_of(options.pop("guard", ()))
    names = score_names(score, table)
    second = parse_second(options.pop("second", ""), names)
    check_combinations(
        scores=len(names),
        guards=bool(guards),
        problems=options.get("problems") is not None,
        against=options.get("against") is not None,
    )
    metrics = dict.fromkeys([*names, *(each.metric for each in guards)])
    if second is not None:
        metrics[second.metric] = None

    def read(metric: str, **changes: Any) -> "Results":
        asked = {**options, **changes}
        others = [name for name in metrics if name != metric and name in table]
        asked["ignore"] = list(dict.fromkeys([*asked.get("ignore", ()), *others]))
        columns = RunColumns(by=by, baseline=baseline, score=metric, seed=seed, **asked)
        return _read(table, columns, fresh)

    def read_all(**shared: Any) -> "tuple[dict[str, Results], dict[str, Results]]":
        parts = {name: read(name, **shared) for name in names}
        guarded = {}
        for each in guards:
            asked = {
                "mode": each.mode,
                "worthwhile": 0.0,
                "not_worse_by": each.margin,
                "may_be_equal": True,
            }
            guarded[each.metric] = read(each.metric, **asked, **shared)
        return parts, guarded

    parts, guarded = read_all()
    budgets = [runs.budget.at for runs in [*parts.values(), *guarded.values()] if runs.budget]
    if len(set(budgets)) > 1:  # the runs of different scores end at different amounts
        parts, guarded = read_all(at=min(budgets))
    results = parts[names[0]]
    if len(parts) > 1:
        results = combined(parts, composite_of(composite, names))
    checked = []
    for each in guards:
        runs = replace(guarded[each.metric], chosen_by=results.choosing_scores)
        checked.append(Guard(each.metric, each.margin, runs))
    results = replace(results, guards=tuple(checked))
    if second is not None:
        measured = None
        if not any(second.metric in trial.costs for trial in results.trials):
            at = options.get("at") if results.budget is None else results.budget.at
            measured = read(second.metric, mode=second.mode, may_be_equal=True, at=at)
        results = with_second(results, second, measured)
    return Judgement.of(results)


def _read(table: "pd.DataFrame", columns: "RunColumns", fresh: "bool | pd.DataFrame") -> "Results":
    """Return the runs with one score, prepared for the requested comparison."""
    from dashboards.sources.fresh_runs import with_fresh
    from dashboards.sources.runs import read_runs

    results = read_runs(table, columns, adaptive=fresh is not True)
    if not isinstance(fresh, bool):
        results = with_fresh(results, fresh, columns)
        assert results.fresh is not None
        results = replace(results, fresh=_as_asked(results.fresh, columns))
    return _as_asked(results, columns)


def _as_asked(results: "Results", columns: "RunColumns") -> "Results":
    """Add the options that determine how arms are compared."""
    return replace(
        results,
        by_task={task: _as_asked(part, columns) for task, part in results.by_task.items()},
        pairing=columns.pairing,
        against=columns.against,
        not_worse_by=columns.not_worse_by,
        objective=replace(results.objective, worthwhile=columns.worthwhile),
    )
