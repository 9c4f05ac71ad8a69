"""What the paper measures [arXiv:2505.12929]: ``trainer diagnose``, ``timing`` and ``analyze-language``."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from trainer.commands.arguments import Commands, add_json, add_runs_dir, count
from trainer.commands.run_folder import run_path
from trainer.commands.start import CONFIG_FILE, rank
from trainer.config.extends import preset_names
from trainer.config.schema import TrainConfig, apply_overrides, load_config, parse_override
from trainer.errors import StorageError


def add_diagnose(commands: Commands) -> None:
    """``trainer diagnose``."""
    diagnose = commands.add_parser("diagnose", help="which tokens move the policy: figures 1-3 of the paper")
    diagnose.add_argument("spec", help="preset, YAML file, or a run, whose newest checkpoint is the model")
    diagnose.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. rollout.prompts_per_step=32")
    diagnose.add_argument("--output", type=Path, default=Path("diagnose"), help="folder (default: diagnose)")
    diagnose.add_argument("--after-steps", type=count, default=5, help="training steps before it (default: 5)")
    diagnose.add_argument("--sample", type=count, default=200, help="tokens with full gradients (default: 200)")
    diagnose.add_argument(
        "--optimizer",
        choices=["sgd", "adamw"],
        default="sgd",
        help="of the updates compared: sgd with learning rate 1e-3 as in the paper, or the run's (default: sgd)",
    )
    add_runs_dir(diagnose)
    diagnose.set_defaults(command=_diagnose)


def diagnosed_config(spec: str, overrides: Sequence[str], runs_dir: Path) -> TrainConfig:
    """The configuration of a preset or file, or of a run, with its newest checkpoint in place of its model.

    Raises:
        ConfigError: neither a preset nor a file nor a run.
        MissingError: a run without an intact checkpoint.
    """
    run = run_path(spec, runs_dir)
    if spec in preset_names() or not (run / CONFIG_FILE).is_file():
        return load_config(spec, overrides)
    from trainer.commands.evaluate import find_model  # torch takes seconds to import

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
    from trainer.commands.diagnose import diagnose  # torch takes seconds to import
    from trainer.commands.diagnose_page import summary, write_diagnosis
    from trainer.commands.progress import Progress

    progress = Progress()
    progress.begin(arguments.after_steps, 0)
    try:
        found = diagnose(
            config, arguments.output, arguments.after_steps, arguments.sample, arguments.optimizer, progress
        )
    finally:
        progress.close()
    title = f"Which tokens move {config.model.name_or_path}"
    page = write_diagnosis(found, title, arguments.output)
    print("\n".join(summary(found)))
    print(f"page:        {page}")
    return 0


def add_timing(commands: Commands) -> None:
    """``trainer timing``."""
    timing = commands.add_parser("timing", help="seconds per step without and with Lopti: table 6 of the paper")
    timing.add_argument("spec", help="preset[:variant] or YAML file, see `trainer presets`")
    timing.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. rollout.max_new_tokens=512")
    timing.add_argument("--steps", type=count, default=3, help="steps of each that count (default: 3)")
    timing.add_argument("--output", type=Path, default=Path("timing"), help="folder of the logs (default: timing)")
    add_json(timing)
    timing.set_defaults(command=_timing)


def _timing(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.spec, arguments.overrides)
    from trainer.commands.timing import measure, table_lines
    from trainer.parallel.ranks import leave_ranks

    found = measure(config, arguments.output, arguments.steps)
    leave_ranks()
    if rank() == 0:
        print(json.dumps(found, indent=2) if arguments.json else "\n".join(table_lines(found)))
    return 0


def add_analyze_language(commands: Commands) -> None:
    """``trainer analyze-language``."""
    language = commands.add_parser("analyze-language", help="kinds of words against reward: figure 5 of the paper")
    language.add_argument("paths", nargs="+", metavar="RUN", help="a run, or a completions.jsonl")
    language.add_argument("--step", type=int, help="only completions logged at this training step")
    language.add_argument(
        "--words",
        choices=["paper", "wide"],
        default="paper",
        help="table 5 of the paper, or more words (default: paper)",
    )
    language.add_argument("--output", type=Path, help="folder of the JSON and CSV files (default: none written)")
    add_json(language)
    add_runs_dir(language)
    language.set_defaults(command=_analyze_language)


def _analyze_language(arguments: argparse.Namespace) -> int:
    from trainer.commands.language import analyze, read_completions, summary, table_rows, write_results
    from trainer.commands.table import print_columns
    from trainer.commands.word_lists import WORD_LISTS

    words = WORD_LISTS[arguments.words]
    paths = [run_path(path, arguments.runs_dir) for path in arguments.paths]
    completions = read_completions(paths, arguments.step)
    results = analyze(completions, words)
    files = write_results(results, completions, arguments.output, words) if arguments.output else []
    if arguments.json:
        print(json.dumps(summary(results, completions, words), indent=2))
        return 0
    print_columns(table_rows(results))
    print(f"completions: {len(completions.texts)}, mean reward {completions.rewards.mean():.3f}")
    for file in files:
        print(f"written:     {file}")
    return 0
