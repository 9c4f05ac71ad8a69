"""``sweep noise``: how much scores differ between runs of one configuration."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from loptune.errors import ConfigError
from loptune.run_names import MEASUREMENT, command_line, lock_folder
from loptune.section import Count
from loptune.terminal.arguments import Commands
from loptune.terminal.commands import Command, Option, add_command
from loptune.terminal.table import print_table
from loptune.yaml_document import dump_yaml

if TYPE_CHECKING:
    from sweep.gate.aa_test import NoiseReport
    from sweep.space.spec import ObjectiveSpec

NOISE_FOLDER = Path("noise")


@dataclass(frozen=True)
class Noise:
    """The measured noise of a program's objective."""

    objective: "ObjectiveSpec"
    report: "NoiseReport"
    blocks: bool = False  # whether a seed has the same effect on every configuration of the program


def add_commands(commands: Commands) -> None:
    """Add ``sweep noise``."""
    add_command(commands, NOISE)


def noise(
    space: Annotated[
        str,
        Option("search space of the program, which runs with its default settings", is_path=True),
    ],
    overrides: Annotated[
        Sequence[str], Option("changed keys of the space", metavar="key=value")
    ] = (),
    *,
    seeds: Annotated[Count, Option("number of seeds")] = 5,
    repeats: Annotated[
        Annotated[int, Field(ge=0)], Option("number of seeds that run a second time")
    ] = 1,
    output: Annotated[Path, Option("folder of the runs", is_path=True)] = NOISE_FOLDER,
) -> Noise:
    """Measure how much scores differ between runs of one configuration. The configuration runs on
    several seeds, and on some of them twice. Reports the standard deviation between seeds, whether
    equal seeds give equal scores, and how large an improvement each number of seeds detects.

    Raises:
        UserError: the space is wrong, another process is measuring in the folder, or fewer than
            two runs ended with a score.
        KeyboardInterrupt: the user interrupted the runs; call again to continue.
    """
    from sweep.gate.aa_test import measure
    from sweep.gate.batch import store_program
    from sweep.gate.program_files import file_digests
    from sweep.gate.spec import PROGRAM
    from sweep.space.file import find_space, load_space

    if seeds < 2:
        raise ConfigError(
            f"--seeds must be at least 2, got {seeds}",
            "command line",
            "use --seeds 5 or more",
            code="one-seed",
        )
    if not 0 <= repeats <= seeds:
        raise ConfigError(
            f"--repeats must be at most --seeds ({seeds}), got {repeats}",
            "command line",
            "use --repeats 1",
            code="repeats",
        )
    spec = load_space(find_space(space), overrides)
    counts = ["--seeds", str(seeds), "--repeats", str(repeats)]
    resume = command_line("sweep", "noise", space, *overrides, *counts, "--output", str(output))
    with lock_folder(output, MEASUREMENT):
        store_program(spec, output)
        content = (output / PROGRAM).read_text(encoding="utf-8")
        if spec.external is not None and spec.external.command:
            content += dump_yaml(file_digests(spec.external.command, output))
        program = hashlib.sha256(content.encode()).hexdigest()[:8]
        report = measure(output, seeds, repeats, program=program, resume=resume)
    return Noise(spec.objective, report, spec.program.seeds_are_blocks)


def show(noise: Noise) -> None:
    """Print the noise in sentences, with a table of detectable improvements."""
    report = noise.report
    sentences = _noise_sentences(
        report, noise.objective.name, noise.objective.worthwhile, blocks=noise.blocks
    )
    for line in sentences:
        print(line)
    if report.seed_matters:
        rows = []
        for seeds, gain in report.detectable().items():
            rows.append([seeds, f"{gain:.3g}", _cost(report, seeds)])
        print()
        print_table(["seeds per configuration", "detectable improvement (80% power)", "cost"], rows)


def _cost(report: "NoiseReport", seeds: int) -> str:
    if report.minutes is None:
        return f"{2 * seeds} runs"
    return f"{2 * seeds} runs, about {2 * seeds * report.minutes:.3g} minutes if run sequentially"


def fields(noise: Noise) -> dict[str, Any]:
    """Return the noise with the keys of ``--json``."""
    report = noise.report
    interval = [0.0, 0.0]
    detectable = {}
    if report.seed_matters:
        interval = list(report.sd_interval)
        detectable = report.detectable()
    return {
        "scores": report.scores,
        "repeated": report.repeated,
        "failed": report.failed,
        "mean": _mean(report.scores),
        "sd": report.sd,
        "sd_interval": interval,
        "seed_matters": report.seed_matters,
        "repeats": report.repeats,
        "minutes": report.minutes,
        "detectable": detectable,
    }


def _noise_sentences(
    report: "NoiseReport", metric: str, worthwhile: float, *, blocks: bool = False
) -> list[str]:
    """Return sentences about the measured noise."""
    lines = []
    scores = report.scores
    if report.failed:
        lines.append(f"{len(report.failed)} of {len(scores) + len(report.failed)} runs failed.")
    if not report.seed_matters:
        lines.append(
            f"All {len(scores)} seeds score {next(iter(scores.values())):g}: the seed does not "
            "reach the program, or the metric is too coarse. No comparison is possible."
        )
        return lines
    low, high = report.sd_interval
    lines.append(
        f"{metric}: mean {_mean(scores):.4g}, SD between seeds {report.sd:.3g} (90% interval "
        f"{low:.3g} to {high:.3g}), {len(scores)} seeds."
    )
    if report.repeats is True:
        lines.append("Runs are reproducible: repeating a seed gave the same score.")
    elif report.repeats is False:
        twice = [seed for seed in report.repeated if seed in scores]
        effect = "a seed failed in only one of its two runs"
        if twice:
            apart = max(abs(report.repeated[seed] - scores[seed]) for seed in twice)
            effect = f"repeating a seed changed the score by {apart:.3g}"
        lines.append(
            f"Runs are not reproducible: {effect}. Something other than the seed is random "
            "(kernels, data order, time)."
        )
    from dashboards.statistics.power import seeds_needed

    needed = seeds_needed(worthwhile, report.sd, len(scores) - 1)
    lines.append(f"Detecting an improvement of {worthwhile:g} takes {needed} per configuration.")
    if blocks:
        lines.append(
            "This is an upper bound: part of the SD is an effect of the seed that all "
            "configurations share, and paired comparisons remove it. One configuration cannot show "
            "how large this part is. After a sweep, `sweep plan` prints the paired SD."
        )
    return lines


def _mean(scores: dict[int, float]) -> float | None:
    return math.fsum(scores.values()) / len(scores) if scores else None


NOISE = Command(
    function=noise, show=show, fields=fields, example="sweep noise space.yaml --seeds 5"
)
