"""The best configurations of earlier sweeps (`search.warm_start`), which a new sweep runs after its
baselines.
"""

from collections.abc import Callable
from pathlib import Path

from loptune.errors import ConfigError, MissingError, listed
from loptune.terminal.table import counted
from loptune.yaml_document import nearest
from sweep.record.folder import all_sweeps
from sweep.record.sweep_record import SweepRecord, open_sweep, readable_sweeps
from sweep.search.history import Configuration, front_numbers, ranked
from sweep.space.arms import arm_of, arms
from sweep.space.points import Parameters, Space, fingerprint
from sweep.space.spec import MULTI_OBJECTIVE, SweepSpec

TOP_CONFIGURATIONS = 3  # best configurations taken from each sweep and arm
_LISTED = 5  # sweeps that an error names


def warm_started(spec: SweepSpec, runs_dir: Path, where: str) -> tuple[SweepSpec, list[str]]:
    """Add the best configurations of the sweeps in `search.warm_start` to the space's baselines.

    Return the space and one message per sweep. Because the added configurations are baselines, they
    also run on resume if the earlier sweeps are missing. ``where`` is the location of the key, for
    errors.

    Raises:
        MissingError: there is no such sweep, or it has no complete configuration in this space that
            is not a baseline already.
        ConfigError: the earlier sweep searches other parameters, or this space lists no baseline.
    """
    names = spec.search.warm_start
    if names and not spec.baselines:
        raise ConfigError(
            "warm start: the space has no baseline to compare with",
            where,
            "add baselines: [{...}]",
            code="warm-start-without-baseline",
        )
    lines: list[str] = []
    space = Space(spec.parameters)

    def mark(point: Parameters) -> str:
        return fingerprint(space.resolve(point, spec.program))

    points = space.distinct(spec.baselines, spec.program)
    seeds: set[int] = set()
    for name in names:
        earlier = _named_sweep(runs_dir, name, where)
        _check_alike(spec, earlier, where)
        best = _best(spec, earlier, lambda point: mark(point) not in points)
        if not best:
            what = (
                f"warm start: {name} has no complete configuration in this space that is not "
                "a baseline already"
            )
            hint = earlier.command("status")
            raise MissingError(what, where, hint, code="warm-start-takes-nothing")
        for point in best:
            points[mark(point)] = point
        seeds |= earlier.spec.used_seeds
        lines.append(
            f"warm start: the best {counted(len(best), 'configuration').removeprefix('1 ')} of "
            f"{name}"
        )
    search = spec.search.model_copy(update={"earlier_seeds": sorted(seeds)})
    return spec.model_copy(update={"search": search, "baselines": list(points.values())}), lines


def _named_sweep(runs_dir: Path, name: str, where: str) -> SweepRecord:
    existing = [folder.name for folder in all_sweeps(runs_dir)]
    if name not in existing:
        hint = f"{runs_dir} has no sweep yet"
        if existing:
            hint = nearest(name, existing)
        what = f"warm start: no sweep named {name}"
        raise MissingError(what, where, hint, code="no-such-sweep")
    return open_sweep(runs_dir, name)


def _check_alike(spec: SweepSpec, other: SweepRecord, where: str) -> None:
    """Check that an earlier sweep searches the same parameters.

    Raises:
        ConfigError: it does not; the error names some sweeps that do.
    """
    mine = set(spec.parameters)
    theirs = set(other.spec.parameters)
    if mine == theirs:
        return
    differences = []
    if mine - theirs:
        differences.append(f"it does not search {', '.join(sorted(mine - theirs))}")
    if theirs - mine:
        differences.append(f"it also searches {', '.join(sorted(theirs - mine))}")
    alike = []
    for sweep in readable_sweeps(other.folder.runs_dir):
        if set(sweep.spec.parameters) == mine:
            alike.append(sweep.folder.name)
    hint = "no sweep here searches the same parameters: remove search.warm_start"
    if alike:
        hint = f"sweeps that search the same parameters: {listed(alike, _LISTED)}"
    raise ConfigError(
        f"warm start: {other.folder.name} searches other parameters ({'; '.join(differences)})",
        where,
        hint,
        key="search.warm_start",
        code="warm-start-other-parameters",
    )


def _best(
    spec: SweepSpec, earlier: SweepRecord, is_new: Callable[[Parameters], bool]
) -> list[Parameters]:
    """Return the best complete configurations of a sweep that are within the space, the same number
    for each arm.

    Args:
        spec: the space of the new sweep.
        earlier: the earlier sweep.
        is_new: returns whether a point is not a baseline yet.
    """
    space = Space(spec.parameters)
    usable: dict[str, list[Parameters]] = {name: [] for name in arms(spec)}  # best first
    for configuration in _best_first(spec, earlier):
        point = configuration.parameters
        if space.could_propose(point) and is_new(point):
            usable[arm_of(spec, point)].append(dict(point))
    count = min(TOP_CONFIGURATIONS, *(len(points) for points in usable.values()))
    taken: list[Parameters] = []
    for points in usable.values():
        taken += points[:count]
    return taken


def _best_first(spec: SweepSpec, earlier: SweepRecord) -> list[Configuration]:
    """Return the complete configurations of an earlier sweep by score. For a sampler that searches
    with two objectives, configurations on their Pareto front come first.
    """
    by_score = ranked(earlier.configurations, earlier.spec.seeds, earlier.spec.objective)
    mine = spec.objective.second
    theirs = earlier.spec.objective.second
    if mine is None or theirs is None or spec.search.sampler not in MULTI_OBJECTIVE:
        return by_score
    if mine.metric != theirs.metric:
        return by_score
    members = front_numbers(earlier.spec, earlier.configurations)
    spread = _ends_first(members)
    on_front = {each.number: each for each in by_score if each.number in members}
    others = [each for each in by_score if each.number not in members]
    return [*(on_front[number] for number in spread), *others]


def _ends_first(members: list[int]) -> list[int]:
    """Return the members of a front in an order whose first few members cover it: both ends, then
    the middle.
    """
    middle = len(members) // 2
    places = dict.fromkeys([0, len(members) - 1, middle, *range(len(members))])
    return [members[place] for place in places if 0 <= place < len(members)]
