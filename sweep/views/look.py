"""``sweep plan --sample N``: what the start policy says about a plan."""

import sys

from dashboards.statistics.power import minimum_detectable_effect
from sweep.space.spec import SweepSpec
from sweep.views.plan import possible, print_section
from trainer.evaluation.look import Look, look_at
from trainer.shell.table import counted


def group_sizes(spec: SweepSpec) -> list[int]:
    """The group sizes that a trial may have."""
    return sorted(set(possible(spec, "rollout.group_size")))


def look_before(spec: SweepSpec, problems: int) -> Look:
    """Sample so many problems with the space's base configuration."""
    return look_at(spec.base, problems, group_sizes(spec))


def print_look(look: Look, spec: SweepSpec, configurations: int) -> None:
    """Print the look, what its error of an evaluation hides from the seeds, and advice to standard error."""
    lines = look.lines(spec.base, group_sizes(spec))
    error = look.error_on(spec.base, next(iter(look.set_sizes)))
    if error > 0 and len(spec.seeds) > 1 and configurations > 1:
        hidden = minimum_detectable_effect(error, len(spec.seeds), configurations)
        seeds = f"{counted(len(spec.seeds), 'seed')} of {counted(configurations, 'configuration')}"
        lines.append(f"with {seeds} that error alone hides gains below {hidden:.2g} (80 % power)")
    print_section("sample", lines)
    for advice in look.advice(spec.base):
        print(f"\n{advice}", file=sys.stderr)
