"""Trace one score: list the modules and functions of our packages that hold it, from the evaluation
of a trial to the event log, and from there to the sampler, `sweep status`, the report, `export` and
`judge`.

    python -m research.score_trace              # modules by stage
    python -m research.score_trace --functions  # also print the name of every function

The accuracy of every evaluation is replaced by a number that occurs nowhere else. A function is
listed if this number is one of its arguments, its variables or its result, or is directly inside
one of them (a value of a mapping, an element of a sequence, a field of an object). A type is listed
if it is one of our classes and such a field holds the number.

The trial is a real trial of the preset tiny_kk in this process: the ranks are called directly,
while a sweep calls them through Ray. The other trials are copies of the first one's folder.
"""

import argparse
import contextlib
import io
import math
import os
import shutil
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import yaml

import sweep.trials.trainable as trainable
import trainer.evaluation.evaluate as evaluation
from research.step_trace import is_named, module_of
from sweep.cli import call
from sweep.driver.attempts import RetryBudget, TrialEvents
from sweep.record.folder import SweepFolder, sweep_folder, write_spec
from sweep.record.sweep_record import SweepRecord
from sweep.search.searcher import ConfigurationSearcher
from sweep.space.file import load_space
from sweep.trials.trainable import SweepTrial, TrialPlan, bind_plan
from sweep.trials.worker import RankWorker
from sweep.views.event_lines import EventLines

_PACKAGES = ("trainer", "rewards", "sweep", "dashboards", "loptune")
_MARK = 0.6180339887
_TOLERANCE = 1e-4  # relative tolerance; scores of different trials differ by less
_SPACE = {
    "name": "traced",
    "trainer": {
        "preset": "tiny_kk",
        "overrides": {
            "max_steps": 1,
            "rollout.prompts_per_step": 2,
            "optim.update_batch_size": 16,
            "evaluation.sets.dev.size": 4,
            "tracking.offline": True,
        },
    },
    "parameters": {"algorithm.ar_alpha": {"uniform": [0.0, 0.5]}},
    "baselines": [{"algorithm.ar_alpha": 0.0}, {"algorithm.ar_alpha": 0.3}],
    "search": {"sampler": "tpe", "configurations": 1, "startup": 2, "seed": 0},
    "seeds": [0, 1, 2],
}


class ScoreTrace:
    """The functions and types of our packages that hold the marked number, by stage."""

    def __init__(self) -> None:
        self.functions: dict[str, set[CodeType]] = defaultdict(set)
        self.types: dict[str, set[str]] = defaultdict(set)
        self._stage = ""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record under this name within the block; threads that start in the meantime are recorded,
        too.
        """
        self._stage = name
        sys.setprofile(self._record)
        threading.setprofile(self._record)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def modules(self, stage: str) -> set[str]:
        """Return the modules of the named functions of a stage."""
        return {module_of(code, _PACKAGES) for code in self.functions[stage] if is_named(code)}

    def _record(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "return" or not module_of(frame.f_code, _PACKAGES):
            return
        for value in [*frame.f_locals.values(), argument]:
            if _holds(value):
                self.functions[self._stage].add(frame.f_code)
                self._note_type(value)

    def _note_type(self, value: Any) -> None:
        kind = type(value)
        if kind.__module__.partition(".")[0] in _PACKAGES:
            self.types[self._stage].add(f"{kind.__module__}.{kind.__qualname__}")


def _holds(value: Any) -> bool:
    """Return whether a value is the marked number, or directly contains it."""
    if isinstance(value, float):
        return _is_mark(value)
    return any(isinstance(part, float) and _is_mark(part) for part in _parts(value))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, str | bytes | int) or value is None:
        return []
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if type(value).__module__.partition(".")[0] in _PACKAGES and hasattr(value, "__dict__"):
        return list(vars(value).values())
    if type(value).__module__.partition(".")[0] in ("pandas", "numpy"):
        flat = getattr(value, "values", value)
        if not getattr(flat, "shape", ()):
            return [flat.item()] if hasattr(flat, "item") else []
        return list(flat.ravel().tolist())
    return []


def _is_mark(number: float) -> bool:
    return math.isclose(number, _MARK, rel_tol=_TOLERANCE)


class _DirectRanks:
    """The ranks of a trial, which are called in this process."""

    pids = (0,)

    def __init__(self, *_: Any, **__: Any) -> None:
        self._rank = RankWorker()

    def call(self, method: str, *arguments: Any, **_: Any) -> list[Any]:
        """Call a method of the only rank."""
        return [getattr(self._rank, method)(*arguments)]

    def kill(self) -> None:
        """Do nothing, because the rank is an object of this process."""


@contextlib.contextmanager
def _marked_evaluations() -> Iterator[None]:
    """Replace the accuracy of every evaluation by the marked number, and Ray's ranks by direct
    calls.
    """
    measured: Callable[..., dict[str, float]] = evaluation.measured

    def marked(*arguments: Any) -> dict[str, float]:
        return {**measured(*arguments), "accuracy": _MARK}

    with (
        mock.patch.object(evaluation, "measured", marked),
        mock.patch.object(trainable, "WorkerGroup", _DirectRanks),
        mock.patch.object(trainable, "get_current_placement_group", object),
    ):
        yield


def _run_trial(plan: TrialPlan, config: Mapping[str, Any], events: TrialEvents) -> dict[str, Any]:
    """Run a trial as Tune would, and return its last result."""
    trial: SweepTrial = object.__new__(bind_plan(plan))
    trial.setup(dict(config))
    result: dict[str, Any] = {}
    errors = os.dup(2)  # a rank writes its errors into the trial's folder
    try:
        while not result.get("done"):
            result = trial.step()
            events.on_trial_result(SimpleNamespace(config=config), result)
    finally:
        os.dup2(errors, 2)
    return result


def _sweep(trace: ScoreTrace, folder: SweepFolder) -> None:
    """Run the first trial, give the others results, and trace the proposal that follows."""
    spec = load_space(folder.space)
    write_spec(folder, spec)
    events = TrialEvents(folder, RetryBudget(0), EventLines(folder, spec), _NO_EVENT)
    searcher = ConfigurationSearcher(spec, folder.event_log, lambda *_: 1, [], lambda: 99)
    trials = len(spec.baselines) * len(spec.seeds)
    for number in range(trials):
        config = searcher.suggest(f"t{number}")
        if number == 0:
            with trace.stage("trial"):
                result = _run_trial(TrialPlan(spec, folder), config, events)
                ended = SimpleNamespace(
                    config=config, last_result=result, metric_analysis={}, metric_n_steps={}
                )
                events.on_trial_complete(ended)
                searcher.on_trial_complete("t0", result)
            first = folder.trial(config["trial"])
            continue
        shutil.copytree(first, folder.trial(config["trial"]))
        score = _MARK * (1 + 1e-6 * number)
        searcher.on_trial_complete(f"t{number}", {**result, "score": score})
    with trace.stage("sampler"):
        searcher.suggest("next")


_NO_EVENT = threading.Event()


def traced(folder: Path) -> ScoreTrace:
    """Run a small sweep and the commands that read it in this folder, and return the trace."""
    trace = ScoreTrace()
    sweep = sweep_folder(folder, "traced")
    sweep.root.mkdir(parents=True)
    sweep.space.write_text(yaml.safe_dump(_SPACE))
    with _marked_evaluations():
        _sweep(trace, sweep)
    record = SweepRecord(load_space(sweep.space), sweep)
    table = folder / "runs.csv"
    rows = [f"{trial.configuration},{trial.seed},{trial.score}" for trial in record.trials()]
    table.write_text("\n".join(["configuration,seed,score", *rows[:6]]) + "\n")
    place = ["--runs-dir", str(folder)]
    output = str(folder / "judged")
    roles = ["--by", "configuration", "--score", "score", "--seed", "seed"]
    roles += ["--baseline", "configuration=0"]
    commands: dict[str, Sequence[str]] = {
        "status": ["status", "traced", *place],
        "report": ["report", "traced", *place],
        "export": ["export", "traced", "--output", str(folder / "best.yaml"), *place],
        "judge": ["judge", str(table), *roles, "--output", output],
    }
    for stage, command in commands.items():
        with trace.stage(stage):
            call(command)
    return trace


def main() -> None:
    """Print the modules, functions and types that hold a score, by stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--functions", action="store_true", help="name every function")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trace = traced(Path(folder))
    all_modules: set[str] = set()
    all_types: set[str] = set()
    for stage, codes in trace.functions.items():
        functions: dict[str, list[str]] = defaultdict(list)
        for code in sorted(codes, key=lambda code: code.co_firstlineno):
            if is_named(code):
                functions[module_of(code, _PACKAGES)].append(code.co_qualname)
        types = trace.types[stage]
        all_modules |= functions.keys()
        all_types |= types
        count = sum(map(len, functions.values()))
        print(f"{stage}: {len(functions)} modules, {count} functions, {len(types)} types")
        for module in sorted(functions):
            print(f"{len(functions[module]):4d}  {module}")
            if arguments.functions:
                for name in functions[module]:
                    print(f"        {name}")
        print(f"      types: {', '.join(sorted(types))}")
    print(f"all stages: {len(all_modules)} modules, {len(all_types)} types")


if __name__ == "__main__":
    main()
