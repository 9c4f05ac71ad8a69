"""Advice on choices in a search space that are allowed but rarely intended. It is printed and never
stops a sweep.
"""

from collections.abc import Iterator

from sweep.programs.base import Advice, advise_idle
from sweep.space.spec import SweepSpec


def advise_space(spec: SweepSpec) -> Iterator[Advice]:
    """Yield advice on the search space."""
    window = spec.objective.window
    evaluations = spec.evaluations
    if evaluations is not None and window > evaluations:
        yield Advice(
            f"a score is the mean of the last {window} evaluations, but a trial has {evaluations}",
            "objective.window",
            f"lower it to at most {evaluations}, or evaluate more often: "
            "trainer.evaluation.every_steps",
        )
    yield from advise_idle(spec.search, "search.")
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
    yield from spec.program.advice(spec.searched)
