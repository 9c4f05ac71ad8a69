"""Running finalists against the baseline until it is known which is better: rounds of fresh seeds.

The runs form a sweep of their own, NAME-decide, in the same MLflow experiment. Its ledger begins with the plan
(the looks and their boundaries), and every look adds where each finalist stands: going on needs nothing else.
"""

import json
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any, Literal

from dashboards.statistics.seed_noise import Noise
from dashboards.statistics.sequential import Design, Standing, make_design, standings
from sweep.record.folder import SweepFolder, command, hold, read_spec, write_spec
from sweep.record.noise import score, sweep_noise
from sweep.record.parent_run import open_parent_run
from sweep.record.summary import configurations, device_hours, trial_rows
from sweep.search.history import LOOK, PLAN
from sweep.search.ledger import Ledger, read_ledger
from sweep.space.spec import DecideSpec, SweepSpec
from sweep.winner.confirm import choose, fresh_space, is_baseline
from trainer.errors import INTERRUPTED, MissingError

SUFFIX = "-decide"
DECISION_TAG = "loptune.decision"  # of its MLflow run: `decision_as_json`
BASELINE = "0"  # its number in NAME-decide

Outcome = Literal["better", "not better", "undecided", "open"]


@dataclass(frozen=True)
class Decision:
    """A decision as its ledger tells it. Finalists are named by their number in NAME-decide."""

    design: Design
    known: Noise  # between seeds, from the sweep that is decided
    looks: tuple[tuple[Standing, ...], ...] = ()  # after every look, the finalists that were open before it

    @property
    def retired(self) -> set[str]:
        """Finalists about which all is said."""
        return {one.finalist for look in self.looks for one in look if one.decision != "open"}

    @property
    def outcome(self) -> Outcome:
        """better: a finalist is. not better: none is, by the worthwhile gain. undecided: no look is left."""
        if any(one.decision == "better" for look in self.looks for one in look):
            return "better"
        if len(self.retired) == self.design.finalists:
            return "not better"
        return "undecided" if len(self.looks) == len(self.design.looks) else "open"


def decide(
    spec: SweepSpec,
    folder: SweepFolder,
    settings: DecideSpec,
    run: Callable[[SweepSpec, SweepFolder], int],
    say: Callable[[str], None],
) -> tuple[int, Decision]:
    """Run rounds until the outcome is known, the budget is spent or somebody stops it.

    Args:
        spec: the sweep whose finalists are meant.
        folder: its folder.
        settings: how many finalists, and what all rounds together may cost.
        run: trains what a sweep lacks and returns an exit code.
        say: prints a line.

    Returns:
        The exit code, and the decision so far.

    Raises:
        MissingError: the sweep has no complete baseline, or nothing to hold against it.
    """
    deciding = deciding_folder(folder)
    if not deciding.ledger.exists():
        _begin(spec, folder, settings)
    space, decision = read_spec(deciding), read_decision(deciding)
    assert decision is not None
    say(_plan_text(decision, spec))
    code = 0
    while decision.outcome == "open":
        seeds = decision.design.looks[len(decision.looks)]
        space = space.model_copy(update={"seeds": [space.seeds[0] + number for number in range(seeds)]})
        price = _price(space, deciding, folder)
        if settings.hours is not None and price > settings.hours:
            say(f"budget spent: with the next look it would cost {price:.3g} of {settings.hours:g} hours")
            say(f"not decided yet. To go on with a larger budget: {command('decide', folder)}")
            return code, decision
        code = run(space, deciding)
        if code not in (0, 1) or _missing(space, deciding):
            say(f"not decided yet. To go on: {command('decide', folder)}")
            return (code if code not in (0, 1) else INTERRUPTED), decision
        decision = _look(space, deciding, decision)
        for line in _look_text(decision, names_in(space)):
            say(line)
    say(f"{folder.name}: {outcome_text(decision, names_in(space))}")
    return code, decision


def deciding_folder(folder: SweepFolder) -> SweepFolder:
    """The folder of NAME-decide."""
    return SweepFolder(folder.runs_dir, folder.name + SUFFIX)


def read_decision(folder: SweepFolder) -> Decision | None:
    """The decision that a sweep's ledger records; None where the sweep is none."""
    if not folder.ledger.exists():
        return None
    plan, looks = None, []
    for record in read_ledger(folder.ledger):
        if record.get("event") == PLAN:
            plan = record
        elif record.get("event") == LOOK:
            looks.append(tuple(Standing(**one) for one in record["standings"]))
    if plan is None:
        return None
    design: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in plan["design"].items()
    }
    known = Noise(plan["deviation"] if plan["deviation"] is not None else float("nan"), plan["freedom"])
    return Decision(Design(**design), known, tuple(looks))


def decision_as_json(decision: Decision, hours: float) -> dict[str, Any]:
    """The decision for the tag of an MLflow run, numbers to five digits, a list for every standing.

    The tag holds 8000 characters, a standing takes less than 60: ten finalists at eight looks fit.

    Args:
        decision: what was said so far.
        hours: of its trials' devices, without interruptions.
    """

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [short(item) for item in value]
        return float(f"{value:.5g}") if isinstance(value, float) else value

    looks = [[short(astuple(one)) for one in look] for look in decision.looks]
    return {
        "design": short(asdict(decision.design)),
        "looks": looks,
        "outcome": decision.outcome,
        "device_hours": short(hours),
    }


def names_in(space: SweepSpec) -> dict[str, str]:
    """Number in NAME-decide -> number in the sweep that is decided."""
    numbers = space.base.tracking.tags["loptune.finalists"].split(",")
    return {str(place): f"#{number}" for place, number in enumerate(numbers)}


def log_decision(folder: SweepFolder, decision: Decision, uri: str) -> None:
    """Write the decision to the MLflow run of NAME-decide, for the report.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    deciding = deciding_folder(folder)
    space = read_spec(deciding)
    done = decision.outcome != "open"
    ended = sum(row.ended for row in trial_rows(space, deciding))
    record = decision_as_json(decision, sum(device_hours(space, deciding).values()))
    tags = {DECISION_TAG: json.dumps(record, separators=(",", ":"))}
    tags |= {"loptune.planned_trials": str(ended)} if done else {}
    parent = open_parent_run(uri, space.base.tracking.experiment or space.name, deciding.name, tags, {})
    parent.finish("FINISHED" if done else "KILLED")


def outcome_text(decision: Decision, names: Mapping[str, str]) -> str:
    """What was decided, in a sentence."""
    worthwhile = f"{decision.design.worthwhile:g}"
    winners = [one for look in decision.looks for one in look if one.decision == "better"]
    if winners:
        best = max(winners, key=lambda one: one.gain)
        return f"configuration {names[best.finalist]} is better than the baseline: {_gain(best)}"
    if decision.outcome == "not better":
        return "; ".join(
            f"configuration {names[one.finalist]} {_WORDS[one.decision].format(worthwhile)} ({_gain(one)})"
            for look in decision.looks
            for one in look
            if one.decision != "open"
        )
    return f"not decided: no finalist is shown to be better, or not better by {worthwhile}"


_WORDS = {
    "better": "is better",
    "not better": "is not better by {}",
    "worse": "is worse",
    "failed": "failed on a seed, and the seeds that are left are its luckier ones",
}


def _begin(spec: SweepSpec, folder: SweepFolder, settings: DecideSpec) -> None:
    proposed = configurations(folder)
    chosen = choose(spec, proposed, settings.finalists)
    if len(chosen) < 2 or not is_baseline(spec, chosen[0]):
        raise MissingError(
            f"{folder.name} has no baseline and another configuration that ran to their end on all seeds",
            str(folder.root),
            command("status", folder),
        )
    known = sweep_noise(spec, proposed)
    if known.deviation <= 1e-9:  # equal scores are coarse scores, not the absence of noise
        known = Noise(float("nan"), 0)
    worthwhile = spec.objective.worthwhile
    design = make_design(known if known.freedom else None, worthwhile, len(chosen) - 1, settings.max_seeds)
    tags = {"loptune.phase": "decide", "loptune.decides": folder.name}
    space = fresh_space(spec, folder, chosen, SUFFIX, design.looks[0], tags)
    # What may be spent is counted over all rounds, before each.
    limits = spec.limits.model_copy(update={"gpu_hours": None, "time_budget_s": None})
    space = space.model_copy(update={"limits": limits})
    deciding = deciding_folder(folder)
    deciding.root.mkdir(parents=True, exist_ok=True)
    with hold(deciding):
        write_spec(deciding, space)
        Ledger(deciding.ledger).append(
            {
                "event": PLAN,
                "design": asdict(design),
                "deviation": known.deviation if known.freedom else None,
                "freedom": known.freedom,
                "time": time.time(),
            }
        )


def _look(space: SweepSpec, deciding: SweepFolder, decision: Decision) -> Decision:
    """Judge the finalists that were open, and write down where they stand."""
    found = configurations(deciding)
    scores: dict[str, dict[Hashable, float]] = {
        str(one.number): {seed: score(one, seed) for seed in space.seeds if seed in one.results} for one in found
    }
    known = decision.known if decision.known.freedom else None
    every = standings(decision.design, scores, BASELINE, known, space.objective.mode)
    stands = tuple(one for one in every if one.finalist not in decision.retired)
    with hold(deciding):
        Ledger(deciding.ledger).append(
            {"event": LOOK, "standings": [asdict(one) for one in stands], "time": time.time()}
        )
    return Decision(decision.design, decision.known, (*decision.looks, stands))


def _missing(space: SweepSpec, deciding: SweepFolder) -> int:
    """Trials of the current look that have no result."""
    found = configurations(deciding)
    proposed = sum(seed not in one.results for one in found if not one.retired for seed in space.seeds)
    return proposed + (len(space.baselines) - len(found)) * len(space.seeds)


def _price(space: SweepSpec, deciding: SweepFolder, folder: SweepFolder) -> float:
    """Device hours of all rounds, the next one included; that one at the mean of the trials so far."""
    spent = device_hours(space, deciding)
    sample = list(spent.values()) or list(device_hours(space, folder).values())
    return sum(spent.values()) + _missing(space, deciding) * (statistics.mean(sample) if sample else 0.0)


def _plan_text(decision: Decision, spec: SweepSpec) -> str:
    design, noise = decision.design, decision.known
    known = f"a deviation of {noise.deviation:.3g} between seeds" if noise.freedom else "the noise not known yet"
    return (
        f"plan: {design.finalists} finalists and the baseline, looks after {', '.join(map(str, design.looks))} "
        f"fresh seeds, worthwhile {spec.objective.metric} {design.worthwhile:g}, {known}"
    )


def _look_text(decision: Decision, names: Mapping[str, str]) -> list[str]:
    place = len(decision.looks)
    return [
        f"look {place} of {len(decision.design.looks)}: configuration {names[one.finalist]} after {one.seeds} "
        f"seeds: {_gain(one)}: {one.decision}"
        for one in decision.looks[-1]
    ]


def _gain(one: Standing) -> str:
    if one.low is None or one.high is None:
        return f"gain {one.gain:+.3g}"
    return f"gain {one.gain:+.3g}, at least {one.low:+.3g}, at most {one.high:+.3g}"
