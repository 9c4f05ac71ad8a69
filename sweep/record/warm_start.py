"""What a search takes from earlier sweeps (`search.warm_start`): their finished configurations, as prior trials."""

from collections import Counter
from pathlib import Path

from sweep.record.folder import all_sweeps
from sweep.record.sweep_record import SweepRecord, open_sweep, readable_sweeps
from sweep.search.history import outcome
from sweep.space.points import Parameters, Space
from sweep.space.spec import PriorSpec, SweepSpec
from trainer.config.yaml_document import nearest
from trainer.errors import ConfigError, MissingError
from trainer.shell.table import counted

_LEFT = {"FAIL": "failed", "PRUNED": "stopped early", "RUNNING": "unfinished", "COMPLETE": "outside of this space"}


def warm_started(spec: SweepSpec, runs_dir: Path, where: str) -> tuple[SweepSpec, list[str]]:
    """The space with what it takes from the sweeps that it names, and a line on each of them.

    The space keeps it: a sweep that is resumed or extended learns from what it took, whatever has become of the
    other. ``where`` is the place of `search.warm_start`.

    Raises:
        MissingError: there is no such sweep, or it has no finished configuration in this space.
        ConfigError: it searches other parameters.
    """
    prior, lines = [], []
    for name in spec.search.warm_start:
        known = [folder.name for folder in all_sweeps(runs_dir)]
        if name not in known:
            hint = nearest(name, known) if known else f"{runs_dir} has no sweep yet"
            raise MissingError(f"warm start: no sweep named {name}", where, hint)
        other = open_sweep(runs_dir, name)
        _check_alike(spec, other, where)
        found, left = _finished(spec, other)
        told = f" ({left.total()} left out: {', '.join(f'{n} {why}' for why, n in left.items())})" if left else ""
        if not found.points:
            what = f"warm start: {name} has no finished configuration in this space{told}"
            raise MissingError(what, where, other.command("status"))
        lines.append(f"warm start: {counted(len(found.points), 'configuration')} of {name}{told}")
        prior.append(found)
    return spec.model_copy(update={"search": spec.search.model_copy(update={"prior": prior})}), lines


def _check_alike(spec: SweepSpec, other: SweepRecord, where: str) -> None:
    mine, theirs, name = set(spec.parameters), set(other.spec.parameters), other.folder.name
    if mine != theirs:
        differing = {"not": sorted(mine - theirs), "also": sorted(theirs - mine)}
        told = " and ".join(f"{word} {', '.join(keys)}" for word, keys in differing.items() if keys)
        alike = [one.folder.name for one in readable_sweeps(other.folder.runs_dir) if set(one.spec.parameters) == mine]
        hint = f"these search the same: {', '.join(alike)}" if alike else "no sweep here searches the same"
        raise ConfigError(f"warm start: {name} searches other parameters: {told}", where, hint)


def _finished(spec: SweepSpec, other: SweepRecord) -> tuple[PriorSpec, "Counter[str]"]:
    """The configurations that are complete on all seeds and lie in this space; how many others, by the reason."""
    space, left, taken = Space(spec.parameters), Counter[str](), dict[int, float]()
    sign = 1 if other.spec.objective.mode == spec.objective.mode else -1  # the best of it is the best here
    for one in other.configurations:
        found = outcome(one, other.spec.seeds)
        if found.state == "COMPLETE" and found.score is not None and _holds(space, one.parameters):
            taken[one.number] = sign * found.score
        else:
            left[_LEFT[found.state]] += 1
    points = [dict(other.configurations[number].parameters) for number in taken]
    seeds, scores = sorted(other.spec.spent_seeds), list(taken.values())
    return PriorSpec(sweep=other.folder.name, seeds=seeds, points=points, scores=scores), left


def _holds(space: Space, point: Parameters) -> bool:
    """Whether a point could have been proposed: the same parameters are active, with values in their ranges."""
    return space.walk(lambda key, one: point[key] if key in point and one.contains(point[key]) else ...) == point
