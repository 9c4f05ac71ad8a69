"""Whether the order of a sweep's configurations carries over to another size: anchors trained again there."""

from collections.abc import Sequence

import numpy as np

from dashboards.statistics.rank_agreement import parameter_weights, rank_agreement
from dashboards.statistics.seed_noise import Interval
from sweep.record.sweep_record import SweepRecord
from sweep.search.history import Configuration, outcome
from sweep.space.spec import SweepSpec
from sweep.winner.confirm import is_baseline, space_of
from trainer.config.variants import short_names
from trainer.errors import MissingError
from trainer.shell.table import counted, number

MIN_ANCHORS = 4  # the same order of three is chance in one of six


def transfer_space(
    sweep: SweepRecord, name: str, anchors: int, preset: str | None, overrides: Sequence[str]
) -> SweepSpec:
    """The space that trains anchors on fresh seeds, from another preset or with overrides.

    Of the complete configurations in the order of their scores, anchors are evenly spread from the worst to the best,
    after the baseline in place of the nearest.
    Seeds are fresh, because a longer run on the same seed would begin as the shorter did.

    Raises:
        MissingError: fewer configurations than anchors are complete.
        ConfigError: the preset or an override cannot be.
    """
    spec, ranked = sweep.spec, [one for one, _ in _complete(sweep).values()]
    if len(ranked) < anchors:
        what = f"{len(ranked)} configurations of {sweep.folder.name} are complete, and {anchors} anchors are wanted"
        raise MissingError(what, str(sweep.folder.root), sweep.command("extend", "--configurations", "4"))
    chosen = [ranked[place] for place in np.linspace(0, len(ranked) - 1, anchors).round().astype(int)]
    for base in [one for one in ranked if is_baseline(spec, one)][:1]:  # first, to be confirmed against there
        near = min(range(anchors), key=lambda place: abs(ranked.index(chosen[place]) - ranked.index(base)))
        chosen = [base, *chosen[:near], *chosen[near + 1 :]]
    changes = {"confirms": None} if preset is None else {"confirms": None, "trainer": {"preset": preset}}
    return space_of(spec, name, chosen, len(spec.seeds), changes, overrides)


def transfer_lines(sweep: SweepRecord, there: SweepRecord) -> list[str]:
    """What the anchors that are complete say: agreement of the order, by parameter, and what to carry over."""
    before, now, mine = _complete(sweep), _complete(there), sweep.folder.name
    anchors = [before[point][0] for point in before if point in now]
    if len(anchors) < MIN_ANCHORS:
        told = f"{counted(len(anchors), 'anchor')} of {len(there.spec.baselines)} complete, {MIN_ANCHORS} are needed"
        return [f"{told}: {there.command('resume', '--retry-failed')}"]
    here, new = ([scores[str(one.parameters)][1] for one in anchors] for scores in (before, now))
    weights = parameter_weights([one.resolved for one in anchors])
    called = short_names(list(weights))
    found = {called[key]: rank_agreement(here, new, own) for key, own in weights.items()}
    pick = np.argmax if sweep.spec.objective.mode == "max" else np.argmin
    best, top = int(pick(here)), int(pick(new))
    lines = [f"order of {len(anchors)} anchors in {mine} and {there.folder.name}: {_told(rank_agreement(here, new))}"]
    lines += [f"  by {name}: {_told(one)}" for name, one in found.items()]
    lines.append(
        f"the best anchor of {mine}, configuration {anchors[best].number}, scores {number(new[best])} there; the "
        f"best there is configuration {anchors[top].number} with {number(new[top])}"
    )
    groups = {
        "carry over {}": [name for name, one in found.items() if one.low > 0],
        "not {}, whose order is reversed": [name for name, one in found.items() if one.high < 0],
        f"{len(anchors)} anchors cannot tell of {{}}": [
            name for name, one in found.items() if one.low <= 0 <= one.high
        ],
    }
    return [*lines, "; ".join(text.format(", ".join(names)) for text, names in groups.items() if names)]


def _told(tau: Interval) -> str:
    return f"Kendall's tau {tau.value:+.2f} (90 % interval {tau.low:+.2f} to {tau.high:+.2f})"


def _complete(sweep: SweepRecord) -> dict[str, tuple[Configuration, float]]:
    """Point -> configuration and score of those that are complete, in the order of their scores."""
    ended = [(one, outcome(one, sweep.spec.seeds)) for one in sweep.configurations]
    scored = [(one, found.score) for one, found in ended if found.state == "COMPLETE" and found.score is not None]
    return {str(one.parameters): (one, score) for one, score in sorted(scored, key=lambda pair: pair[1])}
