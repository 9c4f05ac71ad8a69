"""``sweep gate``: keep or discard changes that are proposed one at a time."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from loptune.errors import ConfigError, NameInUseError
from loptune.section import Count, Positive
from loptune.temporary import temporary_folder
from loptune.terminal.arguments import Commands
from loptune.terminal.commands import Command, Option, add_command
from loptune.terminal.logs import add_verbosity
from loptune.terminal.table import counted, print_table
from loptune.yaml_document import parse_override
from sweep.commands.false_keeps import FalseKeeps, check_false_keeps
from sweep.commands.gate_import import import_, show_import
from sweep.gate.arm import ArmName
from sweep.gate.exit_status import EXIT_CODES

if TYPE_CHECKING:
    from sweep.gate.campaign import Campaign
    from sweep.gate.verdict import GateVerdict
    from sweep.space.spec import SweepSpec

Folder = Annotated[str | Path, Option("folder of the campaign", is_path=True)]
Parallel = Annotated[
    Count | None, Option("number of concurrent runs (default: as many as fit on the machine)")
]
Run = Annotated[bool, Option("start the required runs now, which may take hours")]


@dataclass(frozen=True)
class Standing:
    """A campaign, and the verdict that a command returned."""

    campaign: "Campaign"
    verdict: "GateVerdict"

    @property
    def outcome(self) -> str:
        """The outcome: keep, discard, more (runs are needed), ready (for a proposal), confirmed,
        unconfirmed or ended.
        """
        return self.verdict.outcome


def add_commands(commands: Commands) -> None:
    """Add ``sweep gate``."""
    gate = commands.add_parser(
        "gate",
        help="decide on a sequence of proposed changes: keep or discard",
        description="Decide on a sequence of proposed changes, with a bound on the fraction of "
        "kept changes that are not improvements.",
        epilog="Exit status of propose, record, recheck, run and status: 0 keep (or ready for a "
        "proposal, or confirmed), 10 discard (or unconfirmed), 11 more runs are needed, 12 the "
        "campaign has ended.",
    )
    parts = gate.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS.values():
        add_verbosity(add_command(parts, command))


def start(
    campaign: Folder,
    settings: Annotated[
        Sequence[str], Option("settings of the first baseline", metavar="key=value")
    ] = (),
    *,
    space: Annotated[
        str | None,
        Option("search space of the program; without it, you record scores", is_path=True),
    ] = None,
    metric: Annotated[
        str | None, Option("name of the score (default: the space's objective)")
    ] = None,
    mode: Annotated[
        Literal["max", "min"] | None, Option("whether larger or smaller is better")
    ] = None,
    guard: Annotated[
        Sequence[str],
        Option(
            "metrics on which a kept change must not be worse by more than the margin (default "
            "margin: 0); METRIC:MARGIN:min if smaller values are better",
            metavar="METRIC:MARGIN",
        ),
    ] = (),
    worthwhile: Annotated[Positive | None, Option("smallest gain that matters")] = None,
    false_keeps: FalseKeeps = 0.1,
    first_seeds: Annotated[Count, Option("number of runs per new baseline")] = 8,
    most_seeds: Annotated[Count, Option("maximum number of runs per proposal")] = 32,
    secret: Annotated[
        str | None,
        Option(
            "text from which the seeds of the runs are derived (default: random for a space; "
            "without a space, seeds are counted from 0)",
            metavar="TEXT",
        ),
    ] = None,
    after: Annotated[
        Sequence[str],
        Option(
            "folders of other earlier campaigns to continue; campaigns in the same parent folder "
            "that run the same space are always included",
            metavar="CAMPAIGN",
            is_path=True,
        ),
    ] = (),
    new_budget: Annotated[
        bool, Option("start with a new error budget instead of continuing an earlier one")
    ] = False,
    protect: Annotated[
        Sequence[str],
        Option(
            "files and folders of the evaluation: every revision runs with the baseline's version",
            metavar="PATH",
        ),
    ] = (),
    max_runs: Annotated[
        Count | None, Option("number of runs after which the campaign ends")
    ] = None,
    max_hours: Annotated[
        Positive | None, Option("number of hours after which the campaign ends")
    ] = None,
    deadline: Annotated[
        str | None, Option("date and time at which the campaign ends", metavar="DATE")
    ] = None,
    max_proposals: Annotated[
        Count | None, Option("number of proposals after which the campaign ends")
    ] = None,
) -> Standing:
    """Start a campaign in a new folder. Measure its baseline first: the output lists the runs that
    are needed.

    Raises:
        UserError: the folder has a campaign, or the settings are wrong.
    """
    from dashboards.sources.scores import guards_of
    from sweep.gate.added_guards import check_added
    from sweep.gate.batch import store_program
    from sweep.gate.campaign import start_campaign
    from sweep.gate.earlier import Earlier
    from sweep.gate.earlier_campaigns import earlier_campaigns
    from sweep.gate.limits import read_deadline
    from sweep.gate.program_files import check_protected, file_digests, tracked_revision
    from sweep.gate.proposed_change import check_program
    from sweep.gate.spec import PROGRAM, CampaignSpec
    from sweep.space.file import find_space, load_space

    if after and new_budget:
        raise ConfigError(
            "--after continues an error budget, and --new-budget starts a new one",
            "command line",
            "leave one of the two options out",
            code="two-budgets",
        )
    spec = None
    file: Path | None = None
    path: str | None = None
    name = metric or "score"
    direction = mode or "max"
    if space is not None:
        file = find_space(space)
        path = str(file.resolve())
        spec = load_space(file)
        _check_metric(metric, space, spec)
        name = spec.objective.name
        direction = mode or spec.objective.mode
        if "worthwhile" in spec.objective.model_fields_set:
            worthwhile = worthwhile or spec.objective.worthwhile
    if worthwhile is None:
        raise ConfigError(
            "the smallest gain that matters is not set",
            "command line",
            "add --worthwhile, in units of the score, e.g. --worthwhile 0.01; `sweep noise` "
            "shows which gains can be detected",
            code="no-worthwhile",
        )
    check_false_keeps(false_keeps)
    _check_seeds(first_seeds, most_seeds)
    guards = list(guard)
    added = [each.metric for each in guards_of(guard, score=name)]
    if spec is not None and file is not None:
        check_added(added, spec, file)
        guards = [*spec.objective.guards, *guard]
        spec = spec.with_guards(guards)
    assigned = dict(map(parse_override, settings))
    program: str | None = None
    revision: str | None = None
    files: dict[str, str] = {}
    if spec is not None:
        with temporary_folder("program") as draft:
            store_program(spec, draft)
            check_program(draft, assigned, command=None)
            program = (draft / PROGRAM).read_text(encoding="utf-8")
        words = [] if spec.external is None else spec.external.command
        if words:
            revision = tracked_revision(words)
        if words and revision is None:
            files = file_digests(words, Path(campaign))
    elif assigned:
        raise ConfigError(
            f"{next(iter(assigned))} needs a program to configure",
            "command line",
            "add --space SPACE, or leave the setting out",
            code="no-program",
        )
    if protect and revision is None:
        raise ConfigError(
            "only files of a git repository can be protected",
            "--protect",
            "pass a --space whose program git tracks, or leave --protect out",
            code="protect-needs-git",
        )
    check_protected(protect)
    earlier: list[Earlier] = []
    if not new_budget:
        earlier = earlier_campaigns(Path(campaign), path, name, list(map(Path, after)))
    started = start_campaign(
        Path(campaign),
        CampaignSpec(
            space=path,
            settings=assigned,
            metric=name,
            mode=direction,
            worthwhile=worthwhile,
            false_keeps=false_keeps,
            first_seeds=first_seeds,
            most_seeds=most_seeds,
            guards=guards,
            protect=list(protect),
            max_runs=max_runs,
            max_hours=max_hours,
            deadline=None if deadline is None else read_deadline(deadline),
            max_proposals=max_proposals,
        ),
        program=program,
        revision=revision,
        files=files,
        secret=secrets.token_hex(16) if secret is None and spec is not None else secret,
        earlier=earlier,
    )
    return Standing(started, started.verdict())


def _check_metric(metric: str | None, space: str, spec: "SweepSpec") -> None:
    """Reject a metric that is not the objective of the space.

    Raises:
        ConfigError: the metric is not the name of the space's objective.
    """
    if metric not in (None, spec.objective.name):
        raise ConfigError(
            f"the space's objective is {spec.objective.name}, not {metric}",
            space,
            "leave --metric out, or change objective.metric",
            key="objective.metric",
            code="other-objective",
        )


def _check_seeds(first: int, most: int) -> None:
    """Reject numbers of seeds that would make it impossible to keep a change.

    Raises:
        ConfigError: one of the numbers is too small or too large.
    """
    from dashboards.statistics.campaign_noise import OWN_VARIATION
    from dashboards.statistics.gate import FIRST_CLAIM
    from sweep.gate.recheck import SEEDS_APART

    if first < OWN_VARIATION:
        raise ConfigError(
            f"--first-seeds {first} is too few to estimate the seed noise",
            "--first-seeds",
            f"use at least {OWN_VARIATION}",
            code="too-few-seeds",
        )
    if not FIRST_CLAIM <= most <= SEEDS_APART:
        raise ConfigError(
            f"--most-seeds {most} is out of range",
            "--most-seeds",
            f"use {FIRST_CLAIM} to {SEEDS_APART}",
            code="too-few-seeds",
        )


def propose(
    campaign: Folder,
    settings: Annotated[
        Sequence[str], Option("changed settings of the program", metavar="key=value")
    ] = (),
    *,
    command: Annotated[
        Sequence[str] | None,
        Option(
            "a different command line: all words that follow, so this option comes last",
            metavar="WORD",
            takes_rest=True,
            dest="program",
        ),
    ] = None,
    revision: Annotated[str | None, Option("git revision in which the command runs")] = None,
    note: Annotated[str, Option("what was changed, for the record")] = "",
    run: Run = False,
) -> Standing:
    """Propose a change to the baseline. The answer is keep, discard, or the runs still needed to
    decide.

    Raises:
        UserError: a later campaign continues the error budget, or the program does not accept
            the change.
    """
    from sweep.gate import git
    from sweep.gate.campaign import Campaign
    from sweep.gate.proposed_change import propose_change

    assigned = dict(map(parse_override, settings))
    commit = None if revision is None else git.full_revision(revision)
    with Campaign.read(Path(campaign)).change() as changed:
        proposal = propose_change(changed, assigned, command=command, revision=commit, note=note)
        if not run:
            return Standing(changed, changed.verdict(proposal.number))
    return _after_runs(changed.folder, lambda campaign: campaign.verdict(proposal.number))


def _after_runs(folder: Path, own: Callable[["Campaign"], "GateVerdict"]) -> Standing:
    """Start the required runs, and return the verdict that the caller asked for. Other processes
    may propose changes in the meantime, so the last decision may be about another proposal. If
    another process runs the campaign, leave the runs to it.
    """
    from sweep.gate.campaign import Campaign
    from sweep.gate.runs import run_until_decided

    try:
        last = run_until_decided(folder)
    except NameInUseError:
        last = None
    read = Campaign.read(folder)
    verdict = own(read)
    if verdict.outcome == "more" and last is not None and last.outcome == "ended":
        # the limits allow the runs of this proposal, but not those of all open proposals
        verdict = replace(last, proposal=verdict.proposal)
    return Standing(read, verdict)


def record(
    campaign: Folder,
    arm: Annotated[ArmName, Option("configuration that ran: baseline, proposal or first")],
    seed: Annotated[int, Option("seed of the run")],
    score: Annotated[str | float, Option("score of the run, or `failed`")],
    *,
    proposal: Annotated[
        int | None, Option("number of the proposal that ran, if several are open")
    ] = None,
    guard: Annotated[
        Sequence[str],
        Option(
            "value of a guard in the run, for every guard of the campaign", metavar="METRIC=VALUE"
        ),
    ] = (),
) -> Standing:
    """Record the score of a run that you started yourself. A recorded score is final.

    Raises:
        UserError: the run was not requested, it already has a score, or a guard has no value.
    """
    from sweep.gate.campaign import Campaign

    number = None
    if score != "failed":
        try:
            number = float(score)
        except ValueError:
            raise ConfigError(
                f"{score!r} is not a score",
                "command line",
                "write a number, or `failed`",
                code="no-score",
            ) from None
    with Campaign.read(Path(campaign)).change() as changed:
        changed.record(arm, seed, number, proposal=proposal, guards=_guard_values(guard))
        return Standing(changed, changed.decide())


def _guard_values(words: Sequence[str]) -> dict[str, float]:
    """Return metric -> value of ``METRIC=VALUE`` words.

    Raises:
        ConfigError: a word is not of this form.
    """
    values = {}
    for word in words:
        metric, _, value = word.rpartition("=")
        try:
            values[metric] = float(value)
        except ValueError:
            metric = ""
        if not metric:
            raise ConfigError(
                f"{word!r} is not the value of a guard",
                "--guard",
                "write METRIC=NUMBER, e.g. --guard length=812",
                code="no-guard-value",
            )
    return values


def run(campaign: Folder, *, parallel: Parallel = None) -> Standing:
    """Start the required runs until all open proposals are decided.

    Raises:
        UserError: the campaign has no program, or its runs cannot finish.
        KeyboardInterrupt: the user interrupted the runs; call again to continue.
    """
    from sweep.gate.campaign import Campaign
    from sweep.gate.runs import run_until_decided

    folder = Campaign.read(Path(campaign)).folder
    verdict = run_until_decided(folder, parallel=parallel)
    return Standing(Campaign.read(folder), verdict)


def recheck(campaign: Folder, *, run: Run = False) -> Standing:
    """Compare the current baseline with the first one on fresh seeds. Run this when `recheck_due`
    is true.

    Raises:
        UserError: a proposal or a re-check is open.
    """
    from sweep.gate.campaign import Campaign

    with Campaign.read(Path(campaign)).change() as changed:
        changed.recheck()
        number = len(changed.rechecks)
        if not run:
            return Standing(changed, changed.verdict())
    return _after_runs(changed.folder, lambda campaign: campaign.recheck_verdict(number))


def status(campaign: Folder) -> Standing:
    """Show the kept changes, and which runs are needed.

    Raises:
        UserError: the folder has no campaign, or its record is damaged.
    """
    from sweep.gate.campaign import Campaign

    read = Campaign.read(Path(campaign))
    return Standing(read, read.verdict())


@dataclass(frozen=True)
class Log:
    """The proposals of a campaign that match a search."""

    campaign: "Campaign"
    entries: list[dict[str, Any]]


def log(
    campaign: Folder,
    *,
    search: Annotated[
        str,
        Option(
            "show only proposals whose change, note or reason contains TEXT (case-insensitive)",
            metavar="TEXT",
        ),
    ] = "",
) -> Log:
    """List the proposals and their outcomes. Look here before you propose a change.

    Raises:
        UserError: the folder has no campaign, or its record is damaged.
    """
    from sweep.gate.campaign import Campaign
    from sweep.gate.fields import history

    read = Campaign.read(Path(campaign))
    entries = [history(read, proposal) for proposal in read.proposals]
    wanted = search.casefold()
    found = []
    for entry in entries:
        text = " ".join(str(entry[key]) for key in ("change", "note", "settings", "reason"))
        if wanted in text.casefold():
            found.append(entry)
    return Log(read, found)


def _show_log(found: Log) -> None:
    if not found.entries:
        print(f"no match among {len(found.campaign.proposals)} proposals")
        return
    _print_history(found.entries)


def withdraw(
    campaign: Folder,
    *,
    proposal: Annotated[
        int | None, Option("number of the proposal (default: the latest open one)")
    ] = None,
) -> Standing:
    """Withdraw an open proposal. It is recorded as discarded, and its share of the error budget is
    spent.

    Raises:
        UserError: no proposal is open, or the proposal with this number is not.
    """
    from sweep.gate.campaign import Campaign

    with Campaign.read(Path(campaign)).change() as changed:
        changed.withdraw(proposal)
        return Standing(changed, changed.verdict())


def show(standing: Standing) -> None:
    """Print a verdict in sentences."""
    from sweep.gate.words import sentences

    for line in sentences(standing.campaign, standing.verdict):
        print(line)


def _show_start(standing: Standing) -> None:
    """Print the earlier campaigns that a new one continues, and its verdict."""
    from sweep.gate.earlier import positions

    earlier = standing.campaign.started.get("earlier", [])
    if earlier:
        made, kept = positions(earlier)
        folders = ", ".join(Path(fields["folder"]).name for fields in earlier)
        print(
            f"Continues the error budget of {folders}: {counted(made, 'proposal')}, "
            f"{len(kept)} kept."
        )
    show(standing)


def _show_status(standing: Standing) -> None:
    """Print the proposals of a campaign, how its scores moved, and its verdict."""
    from sweep.gate.fields import history, moves

    if standing.campaign.proposals:
        _print_history([history(standing.campaign, each) for each in standing.campaign.proposals])
    for each in moves(standing.campaign):
        move = each.move
        if move.has_moved:
            print(
                f"{each.metric} moved: the mean of the repeated baseline changed by "
                f"{move.change:+.4g} ({move.low:+.4g} to {move.high:+.4g}, p {move.p:.2g}). "
                "Find out what changed, such as a library, the data or the machine."
            )
    show(standing)


def fields(standing: Standing) -> dict[str, Any]:
    """Return the state of a campaign with the keys of ``--json``."""
    from sweep.gate.fields import campaign_fields

    return campaign_fields(standing.campaign, standing.verdict)


def _print_history(entries: list[dict[str, Any]]) -> None:
    rows = []
    for entry in entries:
        gain = "" if entry["gain"] is None else f"{entry['gain']:+.4g}"
        keys = ("proposal", "change", "outcome")
        runs = str(entry["seeds"])
        if entry["by_hand"]:
            runs += f" ({len(entry['by_hand'])} by hand)"
        rows.append([*(entry[key] for key in keys), gain, runs, entry["reason"]])
    print_table(["proposal", "change", "outcome", "gain", "runs", "reason"], rows)


def _exit_code(standing: Standing) -> int:
    return EXIT_CODES[standing.verdict.outcome]


def _command(function: Any, example: str) -> Command:
    texts = {start: _show_start, status: _show_status}
    return Command(
        function=function,
        show=texts.get(function, show),
        fields=fields,
        exit_code=_exit_code,
        example=example,
    )


COMMANDS = {
    "start": _command(start, "sweep gate start camp --worthwhile 0.01"),
    "propose": _command(propose, 'sweep gate propose camp --note "a longer warmup"'),
    "record": _command(record, "sweep gate record camp baseline 0 0.61"),
    "run": _command(run, "sweep gate run camp"),
    "recheck": _command(recheck, "sweep gate recheck camp"),
    "status": _command(status, "sweep gate status camp"),
    "withdraw": _command(withdraw, "sweep gate withdraw camp"),
    "log": Command(
        function=log,
        show=_show_log,
        fields=lambda found: {"proposals": found.entries},
        example="sweep gate log camp --search warmup",
    ),
    "import": Command(
        function=import_,
        show=show_import,
        fields=lambda record: record.fields(),
        example="sweep gate import results.tsv",
    ),
}
