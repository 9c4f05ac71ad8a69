"""``sweep plan --sample N``: what the start policy says about a plan."""

import sys

from dashboards.statistics.power import minimum_detectable_effect
from sweep.programs.base import Sample
from sweep.space.spec import SweepSpec
from sweep.views.plan import print_section
from trainer.shell.table import counted


def print_sample(sample: Sample, spec: SweepSpec, configurations: int) -> None:
    """Print a sample, what its error of an evaluation hides from the seeds, and advice to standard error."""
    lines = list(sample.lines)
    if sample.error > 0 and len(spec.seeds) > 1 and configurations > 1:
        hidden = minimum_detectable_effect(sample.error, len(spec.seeds), configurations)
        seeds = f"{counted(len(spec.seeds), 'seed')} of {counted(configurations, 'configuration')}"
        lines.append(f"with {seeds} that error alone hides gains below {hidden:.2g} (80 % power)")
    print_section("sample", lines)
    for advice in sample.advice:
        print(f"\n{advice}", file=sys.stderr)
