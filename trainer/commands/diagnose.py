"""``trainer diagnose``: the numbers of the paper's figures 1-3 [arXiv:2505.12929] on one rollout batch."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainer.commands.found_model import find_model
from trainer.commands.start import CONFIG_FILE
from trainer.config.extends import preset_names
from trainer.config.schema import TrainConfig, apply_overrides, load_config, parse_override
from trainer.errors import StorageError
from trainer.shell.arguments import add_runs_dir, count
from trainer.shell.interrupt import unhurried
from trainer.shell.preflight import check_early
from trainer.shell.progress import Progress
from trainer.shell.run_folder import run_path


def add_diagnose(parser: argparse.ArgumentParser) -> None:
    """``trainer diagnose``."""
    parser.add_argument("spec", help="preset, YAML file, or a run (its newest checkpoint)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. rollout.prompts_per_step=32")
    parser.add_argument("--output", type=Path, default=Path("diagnose"), help="folder (default: diagnose)")
    parser.add_argument("--after-steps", type=count, default=5, help="steps to train first (default: 5)")
    parser.add_argument("--sample", type=count, default=200, help="tokens with full gradients (default: 200)")
    parser.add_argument(
        "--optimizer",
        choices=["sgd", "adamw"],
        default="sgd",
        help="for the compared updates: sgd with learning rate 1e-3, as in the paper, or the run's (default: sgd)",
    )
    add_runs_dir(parser)
    parser.set_defaults(command=_diagnose)


def diagnosed_config(spec: str, overrides: Sequence[str], runs_dir: Path) -> TrainConfig:
    """The configuration of a preset or file, or of a run, with its newest checkpoint in place of its model.

    Raises:
        ConfigError: neither a preset nor a file nor a run.
        MissingError: a run without an intact checkpoint.
    """
    run = run_path(spec, runs_dir)
    if spec in preset_names() or not (run / CONFIG_FILE).is_file():
        return load_config(spec, overrides)
    newest = find_model(str(run)).name_or_path
    model = {"model.name_or_path": newest, "model.revision": None, "model.random_weights": False}
    config = load_config(str(run / CONFIG_FILE))
    return apply_overrides(config, {**model, **dict(map(parse_override, overrides))}, "command line")


def _diagnose(arguments: argparse.Namespace) -> int:
    config = diagnosed_config(arguments.spec, arguments.overrides, arguments.runs_dir)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write there: {error.strerror}", str(arguments.output), "choose another --output"
        ) from error
    print(f"{arguments.spec}: {config.model.name_or_path}, {arguments.after_steps} steps first", flush=True)
    check_early(config)
    with unhurried():
        from trainer.paper.diagnose import diagnose  # torch takes seconds to import
        from trainer.paper.tables import summary, write_tables
    progress = Progress()
    progress.begin(arguments.after_steps, 0)
    try:
        found = diagnose(
            config, arguments.output, arguments.after_steps, arguments.sample, arguments.optimizer, progress
        )
    finally:
        progress.close()
    write_tables(found, arguments.output)
    print("\n".join([*summary(found), f"tables:      {arguments.output}/*.csv"]))
    return 0
