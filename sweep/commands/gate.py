"""``sweep gate``: keep or discard changes that come one after the other; ``sweep noise``."""

import argparse
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from loptune.errors import ConfigError
from loptune.terminal.arguments import Commands, add_json, count, positive
from loptune.terminal.logs import add_verbosity
from loptune.terminal.table import counted, print_json, print_table
from loptune.yaml_document import parse_override
from sweep.gate.arm import ArmName
from sweep.gate.exit_status import EXIT_CODES

if TYPE_CHECKING:
    from sweep.gate.aa_test import NoiseReport
    from sweep.gate.campaign import Campaign, GateVerdict
    from sweep.space.spec import SweepSpec


def add_commands(commands: Commands) -> None:
    """Add ``sweep gate`` and ``sweep noise``."""
    gate = commands.add_parser(
        "gate",
        help="keep or discard changes that are proposed one after the other",
        description="Keep or discard changes that are proposed one after the other, with a bound "
        "on how many of all that are kept are no improvement.",
        epilog="Exit status of propose, record, recheck, run and status: 0 keep (or ready for a "
        "proposal, or confirmed), 10 discard (or unconfirmed), 11 more runs are needed.",
    )
    parts = gate.add_subparsers(required=True, metavar="COMMAND")
    _add_start(parts)
    propose = _add_part(parts, "propose", _propose, "propose a change of the baseline")
    propose.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="changed settings of the program",
    )
    propose.add_argument(
        "--command",
        dest="program",
        nargs=argparse.REMAINDER,
        metavar="WORD",
        help="another command line: all words that follow, so this option comes last",
    )
    propose.add_argument("--revision", help="git revision in which the command runs")
    propose.add_argument("--note", default="", help="what was changed, for the record")
    propose.add_argument("--run", action="store_true", help="run what is needed at once")
    record = _add_part(parts, "record", _record, "record the score of a run of your own")
    record.add_argument("arm", choices=get_args(ArmName), help="whose run it was")
    record.add_argument("seed", type=int, help="its seed")
    record.add_argument("score", help="its score, or `failed`")
    _add_part(parts, "run", _run, "run what is needed until the open proposal is decided")
    recheck = _add_part(
        parts, "recheck", _recheck, "compare the baseline with the first one, on fresh seeds"
    )
    recheck.add_argument("--run", action="store_true", help="run what is needed at once")
    _add_part(parts, "status", _status, "show what was kept, and which runs are needed")
    _add_part(parts, "withdraw", _withdraw, "give up the open proposal")

    noise = commands.add_parser(
        "noise",
        help="measure how much scores differ between runs of one configuration",
        description="Run one configuration on several seeds, one of them twice: how much do "
        "scores differ between seeds, does the seed reach the program, do equal seeds repeat, "
        "and which improvement do how many seeds find?",
    )
    noise.add_argument("space", help="search space whose program runs, with its default settings")
    noise.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="changed keys of the space"
    )
    noise.add_argument("--seeds", type=count, default=5, help="number of seeds (default: 5)")
    noise.add_argument(
        "--repeats", type=int, default=1, help="seeds that run a second time (default: 1)"
    )
    noise.add_argument(
        "--output", type=Path, default=Path("noise"), help="folder of the runs (default: noise)"
    )
    add_json(noise)
    noise.set_defaults(command=_noise)


def _add_start(parts: Commands) -> None:
    start = _add_part(parts, "start", _start, "start a campaign in a new folder")
    start.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="settings of the first baseline",
    )
    start.add_argument(
        "--space", help="search space whose program runs; without it you record scores"
    )
    start.add_argument("--metric", help="name of the score (default: the space's objective)")
    start.add_argument("--mode", choices=("max", "min"), help="whether larger or smaller is better")
    start.add_argument("--worthwhile", type=positive, help="smallest gain that matters")
    start.add_argument(
        "--false-keeps",
        type=positive,
        default=0.1,
        help="bound on the expected fraction of kept changes that are no gain (default: 0.1)",
    )
    start.add_argument(
        "--first-seeds", type=count, default=8, help="runs of every new baseline (default: 8)"
    )
    start.add_argument(
        "--most-seeds", type=count, default=32, help="most runs of one proposal (default: 32)"
    )


def _add_part(parts: Commands, name: str, command: Any, text: str) -> argparse.ArgumentParser:
    part = parts.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    part.add_argument("campaign", type=Path, help="folder of the campaign")
    add_json(part)
    add_verbosity(part)
    part.set_defaults(command=command)
    return part


def _start(arguments: argparse.Namespace) -> int:
    from sweep.gate.batch import store_program
    from sweep.gate.campaign import CampaignSpec, start_campaign
    from sweep.space.file import find_space, load_space

    spec = None
    path: str | None = None
    metric = arguments.metric or "score"
    mode = arguments.mode or "max"
    worthwhile = arguments.worthwhile
    if arguments.space is not None:
        file = find_space(arguments.space)
        path = str(file.resolve())
        spec = load_space(file)
        _check_metric(arguments, spec)
        metric = spec.objective.metric
        mode = arguments.mode or spec.objective.mode
        worthwhile = arguments.worthwhile or spec.objective.worthwhile
    if worthwhile is None:
        raise ConfigError(
            "how large must a gain be to matter?",
            "command line",
            "add --worthwhile, in units of the score, e.g. --worthwhile 0.01",
            code="no-worthwhile",
        )
    if not arguments.false_keeps < 1:
        raise ConfigError(
            f"--false-keeps is a fraction, not {arguments.false_keeps:g}",
            "command line",
            "write for example --false-keeps 0.1",
            code="false-keeps",
        )
    _check_seeds(arguments.first_seeds, arguments.most_seeds)
    settings = dict(_settings(arguments.overrides))
    if spec is not None:
        with tempfile.TemporaryDirectory() as draft:
            store_program(spec, Path(draft))
            _check_program(Path(draft), settings, command=None)
    elif settings:
        raise ConfigError(
            f"{next(iter(settings))} is a setting of no program",
            "command line",
            "name the program with --space, or say what the baseline is in your own notes",
            code="no-program",
        )
    campaign = start_campaign(
        arguments.campaign,
        CampaignSpec(
            space=path,
            settings=settings,
            metric=metric,
            mode=mode,
            worthwhile=worthwhile,
            false_keeps=arguments.false_keeps,
            first_seeds=arguments.first_seeds,
            most_seeds=arguments.most_seeds,
        ),
    )
    if spec is not None:
        store_program(spec, campaign.folder)
    return _show(campaign, campaign.verdict(), as_json=arguments.json)


def _check_metric(arguments: argparse.Namespace, spec: "SweepSpec") -> None:
    """Refuse a metric that is not the objective of the space."""
    if arguments.metric not in (None, spec.objective.metric):
        raise ConfigError(
            f"the space's objective is {spec.objective.metric}, not {arguments.metric}",
            arguments.space,
            "leave --metric out, or change objective.metric",
            key="objective.metric",
            code="other-objective",
        )


def _check_program(folder: Path, settings: dict[str, Any], command: list[str] | None) -> None:
    """Check that the program stored in a folder accepts these settings, before anything runs."""
    from sweep.gate.batch import Batch, check_batch

    check_batch(folder, Batch(name="check", settings=settings, command=command, seeds=(0,)))


def _check_seeds(first: int, most: int) -> None:
    """Refuse numbers of seeds with which nothing could be kept.

    Raises:
        ConfigError: too few, or too many.
    """
    from dashboards.statistics.gate import FIRST_CLAIM, OWN_VARIATION
    from sweep.gate.recheck import SEEDS_APART

    if first < OWN_VARIATION:
        raise ConfigError(
            f"{first} seeds do not show how much scores vary",
            "--first-seeds",
            f"at least {OWN_VARIATION}",
            code="too-few-seeds",
        )
    if not FIRST_CLAIM <= most <= SEEDS_APART:
        raise ConfigError(
            f"--most-seeds is {most}, but nothing is kept on fewer than {FIRST_CLAIM} seeds",
            "--most-seeds",
            f"{FIRST_CLAIM} to {SEEDS_APART}",
            code="too-few-seeds",
        )


def _propose(arguments: argparse.Namespace) -> int:
    from sweep.gate.batch import PROGRAM
    from sweep.gate.campaign import Campaign
    from sweep.gate.runs import full_revision

    settings = dict(_settings(arguments.overrides))
    revision = arguments.revision
    if revision is not None:
        revision = full_revision(revision)
    with Campaign(arguments.campaign).change() as campaign:
        if (campaign.folder / PROGRAM).is_file():
            base = campaign.baseline
            _check_program(
                campaign.folder,
                {**base.settings, **settings},
                command=arguments.program or base.command,
            )
        campaign.propose(
            settings, command=arguments.program, revision=revision, note=arguments.note
        )
        return _answer(campaign, arguments)


def _answer(campaign: "Campaign", arguments: argparse.Namespace) -> int:
    """Run what is needed with ``--run``, print the verdict, and return its exit status."""
    from sweep.gate.runs import run_until_decided

    verdict = run_until_decided(campaign) if arguments.run else campaign.verdict()
    return _show(campaign, verdict, as_json=arguments.json)


def _record(arguments: argparse.Namespace) -> int:
    from sweep.gate.campaign import Campaign

    score = None
    if arguments.score != "failed":
        try:
            score = float(arguments.score)
        except ValueError:
            raise ConfigError(
                f"no score: {arguments.score!r}",
                "command line",
                "write a number, or `failed`",
                code="no-score",
            ) from None
    with Campaign(arguments.campaign).change() as campaign:
        campaign.record(arguments.arm, arguments.seed, score)
        verdict = campaign.decide()
        return _show(campaign, verdict, as_json=arguments.json)


def _run(arguments: argparse.Namespace) -> int:
    from sweep.gate.campaign import Campaign
    from sweep.gate.runs import run_until_decided

    with Campaign(arguments.campaign).change() as campaign:
        return _show(campaign, run_until_decided(campaign), as_json=arguments.json)


def _recheck(arguments: argparse.Namespace) -> int:
    from sweep.gate.campaign import Campaign

    with Campaign(arguments.campaign).change() as campaign:
        campaign.recheck()
        return _answer(campaign, arguments)


def _status(arguments: argparse.Namespace) -> int:
    from sweep.gate.campaign import Campaign

    campaign = Campaign(arguments.campaign)
    verdict = campaign.verdict()
    if not arguments.json and campaign.proposals:
        _print_proposals(campaign)
    return _show(campaign, verdict, as_json=arguments.json)


def _withdraw(arguments: argparse.Namespace) -> int:
    from sweep.gate.campaign import Campaign

    with Campaign(arguments.campaign).change() as campaign:
        campaign.withdraw()
        return _show(campaign, campaign.verdict(), as_json=arguments.json)


def _settings(overrides: list[str]) -> list[tuple[str, Any]]:
    return [parse_override(text) for text in overrides]


def _show(campaign: "Campaign", verdict: "GateVerdict", *, as_json: bool) -> int:
    """Print a verdict and return its exit status."""
    if as_json:
        print_json(_as_json(campaign, verdict))
    else:
        for line in _sentences(campaign, verdict):
            print(line)
    return EXIT_CODES[verdict.outcome]


def _as_json(campaign: "Campaign", verdict: "GateVerdict") -> dict[str, Any]:
    model = campaign.model()
    noise: dict[str, Any] = {"sd": None, "correlation": None}
    if model is not None:
        noise = {"sd": model.sd, "correlation": model.correlation}
    kept_from = campaign.kept[-1] if campaign.kept else None
    answer = verdict.answer
    numbers: dict[str, Any] = {}
    if answer is not None:
        numbers = {
            "gain": answer.gain,
            "low": answer.low,
            "high": answer.high,
            "seeds": answer.seeds,
            "level": answer.level,
        }
    return {
        "campaign": str(campaign.folder),
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "proposal": verdict.proposal,
        **numbers,
        "needs": [{"arm": need.arm, "seeds": list(need.seeds)} for need in verdict.needs],
        "baseline": {
            "settings": campaign.baseline.settings,
            "command": campaign.baseline.command,
            "revision": campaign.baseline.revision,
            "mean": _mean(campaign.baseline.scores),
            "seeds": sorted(campaign.baseline.scores),
            "kept_from": kept_from,
        },
        "metric": campaign.spec.metric,
        "larger_is_better": campaign.spec.mode == "max",
        **noise,
        "proposals": len(campaign.proposals),
        "kept": campaign.kept,
        "recheck_due": campaign.recheck_due,
        "false_keeps": campaign.spec.false_keeps,
    }


def _mean(scores: dict[int, float]) -> float | None:
    return math.fsum(scores.values()) / len(scores) if scores else None


def _sentences(campaign: "Campaign", verdict: "GateVerdict") -> list[str]:
    """Return a verdict in words."""
    lines = []
    answer = verdict.answer
    measured = ""
    if answer is not None:
        interval = f"{answer.low:+.4g} to {answer.high:+.4g}"
        if not math.isfinite(answer.low):
            interval = f"below {answer.high:+.4g}"
        runs = counted(answer.seeds, "seed")
        measured = f" Gain {answer.gain:+.4g} ({interval}) on {runs}."
    if verdict.outcome == "keep":
        lines.append(f"Keep proposal {verdict.proposal}: {verdict.reason}.{measured}")
        lines.append("It is the baseline now, and is measured again on fresh seeds.")
    elif verdict.outcome == "discard":
        lines.append(f"Discard proposal {verdict.proposal}: {verdict.reason}.{measured}")
    elif verdict.outcome == "confirmed":
        lines.append(f"Confirmed: {verdict.reason}.{measured}")
    elif verdict.outcome == "unconfirmed":
        lines.append(f"Not confirmed: {verdict.reason}.{measured}")
        lines.append(
            "The changes kept since the last confirmed baseline are given up. That one is the "
            "baseline again, and is measured on fresh seeds."
        )
    elif verdict.outcome == "ready":
        lines.append(
            f"Ready. The baseline scores {_mean(campaign.baseline.scores):.4g} on "
            f"{len(campaign.baseline.scores)} seeds; {len(campaign.kept)} of "
            f"{len(campaign.proposals)} proposals kept."
        )
        change = '--note "what is changed"' if campaign.spec.space is None else "KEY=VALUE --run"
        if campaign.recheck_due:
            lines.append(
                f"{len(campaign.unconfirmed)} changes were kept since the chain was last checked "
                f"against the first baseline: {campaign.command('recheck')}"
            )
        lines.append(f"next: {campaign.command('propose')} {change}")
    else:
        subject = "The baseline"
        if campaign.open_recheck is not None:
            subject = "The re-check"
        if verdict.proposal is not None:
            subject = f"Proposal {verdict.proposal}"
        lines.append(f"{subject} needs more runs: {verdict.reason}.{measured}")
        for need in verdict.needs:
            lines.append(f"  {need.arm}: seeds {', '.join(map(str, need.seeds))}")
        if campaign.spec.space is None:
            need = verdict.needs[0]
            record = campaign.command("record", need.arm, str(need.seeds[0]))
            lines.append(f"next: {record} SCORE")
        else:
            lines.append(f"next: {campaign.command('run')}")
    return lines


def _print_proposals(campaign: "Campaign") -> None:
    rows = []
    for proposal in campaign.proposals:
        decision = proposal.decision or {}
        base = campaign.baselines[proposal.baseline]
        changed = []
        for key, value in proposal.settings.items():
            if base.settings.get(key) != value:
                changed.append(f"{key}={value}")
        if proposal.command != base.command:
            changed.append(" ".join(proposal.command or []))
        if proposal.revision != base.revision:
            changed.append(f"revision {(proposal.revision or '')[:9]}")
        if proposal.note:
            changed.append(proposal.note)
        outcome = decision.get("outcome", "open")
        if proposal.given_up:
            outcome = "given up"
        gain = ""
        if decision.get("gain") is not None:
            gain = f"{decision['gain']:+.4g}"
        runs = len(proposal.scores) + len(proposal.failed)
        reason = decision.get("reason", "")
        rows.append([proposal.number, "; ".join(changed), outcome, gain, runs, reason])
    print_table(["proposal", "change", "outcome", "gain", "runs", "reason"], rows)


def _noise(arguments: argparse.Namespace) -> int:
    from sweep.gate.aa_test import measure
    from sweep.gate.batch import store_program
    from sweep.space.file import find_space, load_space

    if arguments.seeds < 2:
        raise ConfigError(
            "one seed shows no noise", "command line", "--seeds 5 or more", code="one-seed"
        )
    if not 0 <= arguments.repeats <= arguments.seeds:
        raise ConfigError(
            f"--repeats is between 0 and {arguments.seeds}, the number of seeds",
            "command line",
            "--repeats 1",
            code="repeats",
        )
    spec = load_space(find_space(arguments.space), arguments.overrides)
    arguments.output.mkdir(parents=True, exist_ok=True)
    store_program(spec, arguments.output)
    report = measure(arguments.output, arguments.seeds, arguments.repeats)
    if arguments.json:
        print_json(_noise_json(report))
    else:
        for line in _noise_sentences(report, spec.objective.metric, spec.objective.worthwhile):
            print(line)
        if report.seed_matters:
            rows = []
            for seeds, gain in report.detectable().items():
                rows.append([seeds, f"{gain:.3g}", _cost(report, seeds)])
            print()
            print_table(["seeds of each", "improvement found 8 times in 10", "cost"], rows)
    return 0


def _cost(report: "NoiseReport", seeds: int) -> str:
    if report.minutes is None:
        return f"{2 * seeds} runs"
    return f"{2 * seeds} runs, {2 * seeds * report.minutes:.3g} minutes one after the other"


def _noise_json(report: "NoiseReport") -> dict[str, Any]:
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


def _noise_sentences(report: "NoiseReport", metric: str, worthwhile: float) -> list[str]:
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
        lines.append("Equal seeds repeat: the same seed gave the same score again.")
    elif report.repeats is False:
        twice = [seed for seed in report.repeated if seed in scores]
        apart = max(abs(report.repeated[seed] - scores[seed]) for seed in twice)
        lines.append(
            f"Equal seeds do not repeat: the same seed scored {apart:.3g} apart. Something "
            "besides the seed is random (kernels, data order, time)."
        )
    from dashboards.statistics.power import seeds_for

    needed = seeds_for(worthwhile, report.sd)
    if needed is None:
        lines.append(
            f"A worthwhile improvement of {worthwhile:g} needs more than 100 seeds of each."
        )
    else:
        lines.append(f"A worthwhile improvement of {worthwhile:g} needs {needed} seeds of each.")
    return lines
