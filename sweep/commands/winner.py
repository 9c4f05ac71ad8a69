"""``sweep confirm``, ``decide`` and ``export``: whether the best configuration is better, and its file."""

import argparse
from dataclasses import replace
from pathlib import Path

from sweep.commands.arguments import add_named
from sweep.commands.machines import add_machine, prepare, run_options
from sweep.commands.report import recorded_uri
from sweep.record.folder import SweepFolder, command, existing_sweep, read_spec, sweep_folder
from sweep.space.full import FINALISTS, FRESH_SEEDS
from sweep.space.spec import DecideSpec, SweepSpec
from trainer.commands.arguments import Commands, count, positive
from trainer.errors import ConfigError, MissingError, StorageError


def add_confirm(commands: Commands) -> None:
    """``sweep confirm``."""
    confirm = add_named(commands, "confirm", "finalists on fresh seeds and the sealed test")
    add_machine(confirm)
    confirm.add_argument(
        "--finalists", type=count, default=FINALISTS, help="besides the baseline (default: %(default)s)"
    )
    confirm.add_argument(
        "--seeds", type=count, default=FRESH_SEEDS, help="fresh seeds of each (default: %(default)s)"
    )
    confirm.add_argument("--test", help="file of the sealed problems (default: the split `test`)")
    confirm.add_argument(
        "--full", action="store_true", help="with full weights instead of adapters, by the space's section `full`"
    )
    confirm.set_defaults(command=_confirm)


def add_decide(commands: Commands) -> None:
    """``sweep decide``."""
    decide = add_named(commands, "decide", "finalists in rounds of fresh seeds until it is known")
    add_machine(decide)
    decide.add_argument("--gpu-hours", type=positive, help="what all rounds may cost (default: the space's)")
    decide.add_argument("--cpu-hours", type=positive, help="the same for trials without GPUs")
    decide.add_argument("--finalists", type=count, help="besides the baseline (default: the space's, or 2)")
    decide.set_defaults(command=_decide)


def add_export(commands: Commands) -> None:
    """``sweep export``."""
    export = add_named(commands, "export", "the winner as a file for `trainer run`")
    export.add_argument("--output", type=Path, help="file to write (default: NAME-best.yaml)")
    export.set_defaults(command=_export)


def _confirm(arguments: argparse.Namespace) -> int:
    from sweep.winner.confirm import confirmation_space

    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    wanted = (arguments.finalists, arguments.seeds, arguments.test, arguments.full)
    confirming = confirmation_space(spec, folder, *wanted)
    prepare(confirming, arguments)
    from sweep.runner import start_sweep

    options = replace(run_options(arguments), report=False)
    code = start_sweep(confirming, sweep_folder(arguments.runs_dir, confirming.name), options)
    if code in (0, 1) and not spec.base.tracking.offline:
        from dashboards.pictures.verdict import confirmed
        from dashboards.queries import read_sweep
        from sweep.record.report import report_of

        sweep = read_sweep(folder.name, recorded_uri(spec, folder))
        for line in confirmed(sweep, full=arguments.full):
            print(line)
        print(f"report: {report_of(sweep, folder, spec)}")
    return code


def _decide(arguments: argparse.Namespace) -> int:
    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    given = {key: getattr(arguments, key) for key in ("gpu_hours", "cpu_hours", "finalists")}
    settings = (spec.decide or DecideSpec()).model_copy(update={k: v for k, v in given.items() if v is not None})
    has, lacks = ("gpu", "cpu") if spec.resources.gpus_per_trial else ("cpu", "gpu")
    if getattr(settings, f"{lacks}_hours") is not None:
        raise ConfigError(
            f"a budget in {lacks.upper()} hours, and the trials are counted in {has.upper()} hours",
            f"{folder.space}, key resources.gpus_per_trial",
            f"write --{has}-hours N",
        )
    prepare(spec, arguments)
    return _run_decision(spec, folder, settings, arguments)


def then_decide(code: int, spec: SweepSpec, folder: SweepFolder, arguments: argparse.Namespace) -> int:
    """What follows a search that is done, where the space asks for it."""
    from sweep.record.summary import planned_trials, trial_rows

    ended = sum(row.ended for row in trial_rows(spec, folder))
    if spec.decide is None or code not in (0, 1) or ended < planned_trials(spec):
        return code
    return max(code, _run_decision(spec, folder, spec.decide, arguments))


def _run_decision(
    spec: SweepSpec, folder: SweepFolder, settings: DecideSpec, arguments: argparse.Namespace
) -> int:
    from sweep.runner import resume_sweep
    from sweep.winner.decide import decide, log_decision

    options = replace(run_options(arguments), report=False)
    code, decision = decide(
        spec,
        folder,
        settings,
        lambda space, deciding: resume_sweep(space, deciding, options),
        lambda line: print(line, flush=True),
    )
    if not spec.base.tracking.offline and decision.looks:
        from sweep.record.report import report

        uri = recorded_uri(spec, folder)
        log_decision(folder, decision, uri)
        print(f"report: {report(folder, spec, uri)}")
    return code


def _export(arguments: argparse.Namespace) -> int:
    from sweep.record.summary import best_configuration
    from sweep.space.points import trial_config
    from sweep.winner.accelerate_file import write_accelerate_config
    from trainer.config.schema import save_config

    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    best = best_configuration(spec, folder)
    if best is None:
        raise MissingError(
            f"no configuration of {folder.name} is complete yet", str(folder.root), command("status", folder)
        )
    output: Path = arguments.output or Path(f"{folder.name}-best.yaml")
    if output.exists():
        raise ConfigError(f"{output} exists", str(output), "choose another file with --output")
    config, workers = trial_config(spec.base, best.parameters, spec.seeds[0]), spec.resources.workers_per_trial
    try:
        save_config(config, output)
        accelerate = write_accelerate_config(config, workers, output)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}", str(output), "choose --output") from None
    print(best.text(spec.objective))
    if workers > 1:
        print(f"accelerate launch --config_file {accelerate} -m trainer run {output}")
    else:
        print(f"trainer run {output}")
    return 0
