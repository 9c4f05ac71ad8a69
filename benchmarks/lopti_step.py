"""Measure the cost of Lopti's second pass: a Lopti step compared with a plain GRPO step on the same
completions.

    python -m benchmarks.lopti_step                         # the tiny model on puzzles, minutes
    python -m benchmarks.lopti_step --model smollm2-135m    # a pretrained model on additions
    python -m benchmarks.lopti_step optim.old_logprobs=rollout algorithm.kl_coef=0

Both sides take the same steps alternately in one process. The learning rate is so small that no
weight changes, so both sample and update the same completions. Prints CPU and wall seconds of a
step by phase (medians), the floating-point operations of the matrix products in one more step of
each side, and the ratio Lopti / plain of all three; for the full step also by round. Paper:
training 2.0, a full step 1.45 [arXiv:2505.12929, table 6].

Packed rows end with the last token of the pass. The update of a plain step reuses the forward pass
from scoring, Lopti's update does not (`trainer.policy.logprobs`).
"""

import argparse
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import trainer.loop
from research.tables import print_rows
from trainer.config.schema import TrainConfig, apply_overrides, load_config
from trainer.cpu.linear import is_faster_in_onednn
from trainer.metrics.step import Stopwatch
from trainer.types import RunContext

PRESETS = {"tiny": "tiny_kk", "smollm2-135m": "smollm2_addition"}
ETA = {"plain": 0.0, "Lopti": 0.5}
PHASES = ("rollout", "reward", "logprobs", "update", "step")
COMPUTED = "update/tokens_computed"
SO_SMALL = 1e-30  # learning rate with which the optimizer works, but no weight changes
Seconds = dict[str, float]


def _linear_operations(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the operations of a linear layer with the shapes [..., K] and [N, K]."""
    return 2 * math.prod(x) * weight[0]


# operations that the counter does not know
ONEDNN = {}
if is_faster_in_onednn():
    ONEDNN = {torch.ops.mkldnn._linear_pointwise: _linear_operations}


class Meter(Stopwatch):
    """A stopwatch that also measures the CPU seconds and counted operations of each phase."""

    counter: FlopCounterMode | None = None
    last: "Meter"

    def __init__(self) -> None:
        super().__init__()
        self.cpu: Seconds = defaultdict(float)
        self.flops: Seconds = defaultdict(float)
        Meter.last = self

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the enclosed block as part of ``phase``."""
        started = time.process_time()
        counted = self._counted()
        with super().__call__(phase):
            yield
        self.cpu[phase] += time.process_time() - started
        self.flops[phase] += self._counted() - counted

    def _counted(self) -> int:
        return self.counter.get_total_flops() if self.counter else 0


def make_trainer(config: TrainConfig, eta: float, folder: Path) -> trainer.loop.Trainer:
    still = {"optim.lr": SO_SMALL, "optim.weight_decay": 0.0}
    config = apply_overrides(
        config, {"algorithm.lopti_eta": eta, "tracking.offline": True, **still}
    )
    return trainer.loop.Trainer(config, RunContext.of(folder / f"eta-{eta}"))


def counted_step(side: trainer.loop.Trainer) -> tuple[Seconds, dict[str, float]]:
    """Return the operations of a step by phase, and its metrics."""
    Meter.counter = FlopCounterMode(display=False, custom_mapping=ONEDNN)
    with Meter.counter:
        metrics = side.training_step()
    Meter.counter = None
    return Meter.last.flops, metrics


def timed_step(side: trainer.loop.Trainer) -> tuple[Seconds, Seconds]:
    """Return the CPU seconds and wall seconds of a step by phase."""
    side.training_step()
    return Meter.last.cpu, Meter.last.seconds


def medians(steps: Sequence[Seconds]) -> Seconds:
    return {phase: statistics.median(step[phase] for step in steps) for phase in PHASES}


def report(
    measured: dict[str, dict[str, Seconds]], rounds: dict[str, list[Seconds]], title: str
) -> None:
    """Print the table of phases, and the ratio of each round."""
    rows = []
    for phase in PHASES:
        row = [phase]
        for quantity, digits in (("cpu", 3), ("wall", 3), ("flops", 2)):
            plain, lopti = (measured[side][quantity][phase] for side in ETA)
            unit = 1e9 if quantity == "flops" else 1.0
            row += [
                f"{plain / unit:.{digits}f}",
                f"{lopti / unit:.{digits}f}",
                f"{lopti / plain:.2f}" if plain else "",
            ]
        rows.append(row)
    names = [
        f"{side} {unit}" for unit in ("CPU s", "wall s", "GFLOP") for side in (*ETA, "ratio in")
    ]
    print_rows(title, ["phase", *names], rows)
    ratios = [lopti["step"] / plain["step"] for plain, lopti in zip(*rounds.values(), strict=True)]
    print(f"full step in CPU seconds, by round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(PRESETS), default="tiny")
    parser.add_argument("--rounds", type=int, default=8, help="timed steps per side, alternately")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="e.g. optim.old_logprobs=rollout"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    trainer.loop.Stopwatch = Meter  # type: ignore[misc]
    config = load_config(PRESETS[arguments.model], arguments.overrides)
    measured: dict[str, dict[str, Seconds]] = {}
    cpu: dict[str, list[Seconds]] = {side: [] for side in ETA}
    wall: dict[str, list[Seconds]] = {side: [] for side in ETA}
    with tempfile.TemporaryDirectory() as folder:
        sides = {side: make_trainer(config, eta, Path(folder)) for side, eta in ETA.items()}
        for name, side in sides.items():
            flops, metrics = counted_step(side)
            measured[name] = {"flops": flops}
            print(f"{name}: " + f"{COMPUTED} {metrics[COMPUTED]:,.0f}", flush=True)
        for _ in range(arguments.rounds):
            for name, side in sides.items():
                of_cpu, of_wall = timed_step(side)
                cpu[name].append(of_cpu)
                wall[name].append(of_wall)
        for side in sides.values():
            side.close()
    for name in ETA:
        measured[name] |= {"cpu": medians(cpu[name]), "wall": medians(wall[name])}
    title = f"{arguments.model}, {arguments.threads} thread(s), {arguments.rounds} rounds"
    title = " ".join([title, *arguments.overrides])
    report(measured, cpu, title)


if __name__ == "__main__":
    main()
