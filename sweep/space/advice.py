"""Advice on choices in a search space that are valid but rarely intended. Advice is printed and
never stops a sweep.
"""

import re
from collections.abc import Iterator

from dashboards.sources.directions import direction_by_name
from sweep.programs.base import Advice, ineffective_key_warnings
from sweep.space.spec import STEP, SweepSpec


def _is_seed(key: str) -> bool:
    """Return whether a key names a random seed: ``seed``, ``train.seed``, ``random_state``."""
    words = re.split(r"[^a-z]+", key.lower())
    return "seed" in words or words[-2:] == ["random", "state"] or words[-1:] == ["rng"]


def _coarse_scores(spec: SweepSpec) -> Iterator[Advice]:
    """Yield a warning if one more correct answer would look like a worthwhile improvement."""
    objective = spec.objective
    if len(objective.metrics) > 1 or objective.axis != STEP:
        return  # a mean of several sets, or of a curve, takes many more values
    step = spec.program.score_step(objective.metrics[0])
    if step is None:
        return
    step /= objective.window  # a score averages this many evaluations
    if step >= objective.worthwhile:
        yield Advice(
            f"scores change in steps of {step:.2g}, so a single additional correct answer would "
            f"already be a worthwhile improvement (objective.worthwhile={objective.worthwhile:g})",
            "objective.worthwhile",
            "evaluate on more problems, or raise objective.worthwhile",
        )


def advise_space(spec: SweepSpec) -> Iterator[Advice]:
    """Yield advice on the search space."""
    window = spec.objective.window
    evaluations = spec.evaluations
    if spec.objective.axis == STEP and evaluations is not None and window > evaluations:
        yield Advice(
            f"a score is the mean of the last {window} evaluations, but a trial has {evaluations}",
            "objective.window",
            f"lower it to at most {evaluations}, or evaluate more often: "
            "trainer.evaluation.every_steps",
        )
    metric = spec.objective.name
    mode = spec.objective.mode
    by_name = direction_by_name(metric)
    if by_name is not None and by_name != mode:
        sought, better = {"max": ("largest", "smaller"), "min": ("smallest", "larger")}[mode]
        yield Advice(
            f"the sweep looks for the {sought} {metric}",
            "objective.mode",
            f"write mode: {by_name} if a {better} value is better",
        )
    yield from _coarse_scores(spec)
    for key in spec.parameters:
        if _is_seed(key):
            yield Advice(
                f"{key} looks like a random seed: the search would choose the seed that happens to "
                "score well, not a better setting",
                f"parameters.{key}",
                f"remove it from the parameters, pass {{seed}} to the program as its {key}, and "
                "list seeds: [0, 1, 2]",
            )
    yield from ineffective_key_warnings(spec.search, "search.")
    for index, baseline in enumerate(spec.baselines):
        for key, value in baseline.items():
            parameter = spec.parameters[key]
            if (
                spec.program.has(key)
                and not parameter.contains(value)
                and parameter.kind != "value"
            ):
                yield Advice(
                    f"baseline {index} has {key}={value}, which is outside the searched range "
                    f"{parameter.extremes}",
                    f"baselines, {key}",
                    "widen the range if the sampler should learn from this baseline",
                )
    yield from spec.program.advice(spec.values_of_trials())
