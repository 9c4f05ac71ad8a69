"""The ``trainer`` command."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from trainer.commands.arguments import PAGES, count, parse_arguments, port, positive, version_text
from trainer.commands.run_folder import check_name
from trainer.commands.start import Start, rank, saved_run, start_run
from trainer.config.extends import find_spec, preset_names, variant_names
from trainer.config.schema import dump_config, load_config
from trainer.errors import INTERRUPTED, ConfigError, StorageError, UserError, printable
from trainer.files import storage_fault

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code, or ends the process with it where it is one rank of several."""
    code = _main(argv)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from trainer.parallel.ranks import end_rank

        end_rank(code)
    return code


def _main(argv: Sequence[str] | None) -> int:
    try:
        arguments = parse_arguments(_parser(), argv)
        code: int = arguments.command(arguments)
        return code
    except UserError as error:
        if rank() == 0 or not isinstance(error, ConfigError):  # all ranks have the same configuration
            print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has gone, as in `trainer ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE  # as of any program that a closed pipe ends
    except OSError as error:
        fault = storage_fault(error)
        if fault is None:
            raise
        print(fault, file=sys.stderr)
        return fault.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer", description="Train one policy with one update rule.", epilog=PAGES
    )
    parser.add_argument("--version", action="version", version=version_text())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add_command in (
        _add_run,
        _add_resume,
        _add_init,
        _add_presets,
        _add_options,
        _add_metrics,
        _add_diagnose,
        _add_timing,
        _add_rehearse,
        _add_evaluate,
        _add_serve,
        _add_analyze_language,
        _add_upload,
    ):
        add_command(commands)
    return parser


def _add_run(commands: Commands) -> None:
    run = commands.add_parser("run", help="train; records into runs/NAME and MLflow")
    run.add_argument("spec", help="preset[:variant] or YAML file, see `trainer presets`")
    run.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. algorithm.ar_alpha=0.3")
    run.add_argument("--name", help="name of the run (default: the spec's name and the time)")
    run.add_argument("--dry-run", action="store_true", help="show a prompt, a scored completion, memory and steps")
    run.add_argument("--resume", action="store_true", help="continue the run NAME from its newest checkpoint")
    _add_start_options(run)
    run.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    overrides = [*arguments.overrides, *(["tracking.offline=true"] if arguments.offline else [])]
    if arguments.dry_run:
        config = load_config(arguments.spec, overrides)
        print(f"{arguments.spec}: loading {config.model.name_or_path}", flush=True)
        from trainer.commands.dry_run import dry_run  # torch takes seconds to import

        dry_run(config)
        return 0
    start = Start(
        arguments.spec,
        overrides,
        arguments.runs_dir,
        arguments.name,
        resume=arguments.resume,
        start_over=arguments.start_over,
    )
    return start_run(start)


def _add_resume(commands: Commands) -> None:
    resume = commands.add_parser("resume", help="go on with a run that was stopped or killed")
    resume.add_argument("name", help="name of the run, see `trainer ls`")
    resume.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. max_steps=200")
    _add_start_options(resume)
    resume.set_defaults(command=_resume)


def _resume(arguments: argparse.Namespace) -> int:
    saved = saved_run(arguments.runs_dir, arguments.name)
    overrides = [*arguments.overrides, *(["tracking.offline=true"] if arguments.offline else [])]
    start = Start(str(saved), overrides, arguments.runs_dir, resume=True, start_over=arguments.start_over)
    return start_run(start)


def _add_start_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")
    parser.add_argument(
        "--start-over", action="store_true", help="resume from step 0; the old record stays in earlier-N"
    )
    parser.add_argument(
        "--offline", action="store_true", help="do not contact MLflow; `trainer upload` sends it later"
    )


def _add_init(commands: Commands) -> None:
    init = commands.add_parser("init", help="a folder with a run file, a reward, data and a sweep to start from")
    init.add_argument("folder", type=Path, metavar="DIR", help="folder to make")
    init.add_argument("--model", help="hub name or folder of the model to train")
    init.set_defaults(command=_init)


def _init(arguments: argparse.Namespace) -> int:
    from trainer.commands.init import EXAMPLE_MODEL, next_commands, write_project

    for path in write_project(arguments.folder, arguments.model or EXAMPLE_MODEL):
        print(f"written: {path}")
    print(next_commands(arguments.folder))
    return 0


def _add_presets(commands: Commands) -> None:
    presets = commands.add_parser("presets", help="list the presets, or print one resolved")
    presets.add_argument("name", nargs="?", help="preset[:variant] to print")
    presets.add_argument("--json", action="store_true", help="print JSON")
    presets.add_argument("--ranks", type=count, help="of the memory shown (default: 4 with DeepSpeed, else 1)")
    presets.add_argument("--gpu-gb", type=positive, help="memory of one GPU (default: this machine's, else 80)")
    presets.set_defaults(command=_presets)


def _presets(arguments: argparse.Namespace) -> int:
    if arguments.name:
        config = load_config(arguments.name)
        if arguments.json:
            print(json.dumps(config.model_dump(mode="json"), indent=2))
        else:
            from trainer.commands.memory import memory_comment

            print(dump_config(config) + memory_comment(config, arguments.ranks, arguments.gpu_gb), end="")
        return 0
    rows: list[dict[str, Any]] = [
        {"name": name, "description": _first_comment(find_spec(name).path), "variants": variant_names(name)}
        for name in preset_names()
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        _print_table([{**row, "variants": " ".join(row["variants"])} for row in rows])
        print("One of a preset's variants: trainer run NAME:VARIANT")
    return 0


def _first_comment(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _add_options(commands: Commands) -> None:
    options = commands.add_parser("options", help="every configuration key: default, allowed values, meaning")
    options.add_argument("word", nargs="?", default="", help="only keys with this in their name")
    options.add_argument("--json", action="store_true", help="print JSON")
    options.set_defaults(command=_options)


def _options(arguments: argparse.Namespace) -> int:
    from trainer.commands.reference import print_options

    print_options(arguments.word, arguments.json)
    return 0


def _add_metrics(commands: Commands) -> None:
    metrics = commands.add_parser("metrics", help="every metric that is logged, its formula and unit")
    metrics.add_argument("word", nargs="?", default="", help="only metrics with this in their name")
    metrics.add_argument("--json", action="store_true", help="print JSON")
    metrics.add_argument("--markdown", action="store_true", help="print the page docs/metrics.md")
    metrics.set_defaults(command=_metrics)


def _metrics(arguments: argparse.Namespace) -> int:
    from trainer.commands.reference import metrics_page, print_metrics

    if arguments.markdown:
        print(metrics_page(), end="")
    else:
        print_metrics(arguments.word, arguments.json)
    return 0


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(rows[0]):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(printable(str(value))) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console.width = 100
    console.print(table)


def _add_diagnose(commands: Commands) -> None:
    diagnose = commands.add_parser("diagnose", help="which tokens move the policy: figures 1-3 of the paper")
    diagnose.add_argument("spec", help="preset name or YAML file; model.name_or_path=FOLDER takes a checkpoint")
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
    diagnose.set_defaults(command=_diagnose)


def _diagnose(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.spec, arguments.overrides)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write there: {error.strerror}", str(arguments.output), "choose another --output"
        ) from error
    from trainer.commands.diagnose import diagnose
    from trainer.commands.diagnose_page import summary, write_diagnosis

    found = diagnose(config, arguments.output, arguments.after_steps, arguments.sample, arguments.optimizer)
    title = f"Which tokens move {config.model.name_or_path}"
    page = write_diagnosis(found, title, arguments.output)
    print("\n".join(summary(found)))
    print(f"page:        {page}")
    return 0


def _add_timing(commands: Commands) -> None:
    timing = commands.add_parser("timing", help="seconds per step without and with Lopti: table 6 of the paper")
    timing.add_argument("spec", help="preset[:variant] or YAML file, see `trainer presets`")
    timing.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. rollout.max_new_tokens=512")
    timing.add_argument("--steps", type=count, default=3, help="steps of each that count (default: 3)")
    timing.add_argument("--output", type=Path, default=Path("timing"), help="folder of the logs (default: timing)")
    timing.add_argument("--json", action="store_true", help="print JSON")
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


def _add_rehearse(commands: Commands) -> None:
    rehearse = commands.add_parser("rehearse", help="train a preset for GPUs, made small, on the CPU")
    rehearse.add_argument("spec", nargs="?", help="preset[:variant] or YAML file")
    rehearse.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. parallel.zero_stage=3")
    rehearse.add_argument("--all", action="store_true", help="every preset and variant, one after another")
    rehearse.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    rehearse.add_argument("--ranks", type=count, default=2, help="of presets with a strategy (default: 2)")
    rehearse.add_argument("--json", action="store_true", help="print JSON")
    rehearse.set_defaults(command=_rehearse)


def _rehearse(arguments: argparse.Namespace) -> int:
    from trainer.commands.rehearse import every_preset, pick_engine, rehearse
    from trainer.scratch import scratch_folder

    if arguments.all == bool(arguments.spec):
        raise ConfigError("which preset?", "trainer rehearse", "name one, or give --all")
    names = every_preset() if arguments.all else [arguments.spec]
    configs = {name: load_config(name, arguments.overrides) for name in names}
    engine, said = pick_engine()
    print(f"{len(names)} configuration{'s' if len(names) > 1 else ''}; {said}", file=sys.stderr, flush=True)
    with scratch_folder("rehearsal") as folder:
        found = rehearse(configs, folder, engine, arguments.device, arguments.ranks)
    if arguments.json:
        print(json.dumps([one.as_json() for one in found], indent=2))
    else:
        _print_table([one.row() for one in found])
    return 0 if all(all(one.checks().values()) for one in found) else 1


def _add_evaluate(commands: Commands) -> None:
    evaluate = commands.add_parser(
        "evaluate", help="accuracy and pass@k of a model, by difficulty, with intervals"
    )
    evaluate.add_argument(
        "model", help="hub name, model folder, checkpoint, run folder (its newest checkpoint), or tiny"
    )
    evaluate.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. data.task=math")
    evaluate.add_argument(
        "--spec", help="preset or YAML file that says how to evaluate (default: the model's run)"
    )
    evaluate.add_argument(
        "--sets",
        dest="evaluation.sets",
        nargs="+",
        metavar="NAME=SOURCE",
        help="file, hub name, generated, or {source: ...}",
    )
    completions = "evaluation.completions_per_problem"
    evaluate.add_argument(
        "-k", "--completions", dest=completions, type=count, metavar="N", help="completions per problem"
    )
    evaluate.add_argument(
        "--pass-at",
        dest="evaluation.pass_at_k",
        type=count,
        metavar="K",
        help="k of pass@k (default: all completions)",
    )
    evaluate.add_argument(
        "--temperature", dest="evaluation.temperature", type=float, metavar="T", help="0 is greedy"
    )
    evaluate.add_argument(
        "--last",
        type=count,
        metavar="N",
        help="the last N checkpoints of a run, and the row of their means",
    )
    evaluate.add_argument("--limit", type=count, help="only the first N problems of every set")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    evaluate.add_argument("--out", type=Path, help="file that gets the JSON besides runs/NAME/evaluation.json")
    evaluate.add_argument("--name", help="name of the record (default: the model's name and the time)")
    evaluate.add_argument("--runs-dir", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")
    evaluate.add_argument(
        "--offline", dest="tracking.offline", action="store_const", const=True, help="do not contact MLflow"
    )
    evaluate.set_defaults(command=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    from trainer.commands.evaluate import (
        evaluation_config,
        find_model,
        last_checkpoints,
        record_name,
        run_evaluation,
    )

    models = last_checkpoints(arguments.model, arguments.last) if arguments.last else [find_model(arguments.model)]
    flags = {key: value for key, value in vars(arguments).items() if "." in key and value is not None}
    config = evaluation_config(models[-1], arguments.spec, arguments.overrides, flags, arguments.limit)
    name = check_name(arguments.name or record_name(arguments.model))
    if (arguments.runs_dir / name).exists():
        raise ConfigError(f"{name} exists", str(arguments.runs_dir / name), "give another --name")
    return run_evaluation(config, models, name, arguments.runs_dir, arguments.out, arguments.json)


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="a vLLM server for runs with rollout.vllm.mode=server")
    serve.add_argument("spec", help="preset name or YAML file of the runs to be served")
    serve.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. rollout.vllm.tensor_parallel=2")
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; who may use it is said by LOPTUNE_SERVER_TOKEN"
    )
    serve.add_argument("--port", type=port, default=8000, help="default: 8000")
    serve.add_argument(
        "--gpu-memory-utilization", type=float, default=0.9, help="share of the GPU's memory (default: 0.9)"
    )
    serve.set_defaults(command=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from trainer.commands.serve import serve

    config = load_config(arguments.spec, arguments.overrides)
    serve(config, arguments.host, arguments.port, arguments.gpu_memory_utilization)
    raise AssertionError("unreachable: the process has become the server")


def _add_analyze_language(commands: Commands) -> None:
    language = commands.add_parser("analyze-language", help="kinds of words against reward: figure 5 of the paper")
    language.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="run folder or completions.jsonl")
    language.add_argument("--step", type=int, help="only completions logged at this training step")
    language.add_argument(
        "--words",
        choices=["paper", "wide"],
        default="paper",
        help="table 5 of the paper, or more words (default: paper)",
    )
    language.add_argument("--output", type=Path, help="folder of the JSON and CSV files (default: none written)")
    language.add_argument("--json", action="store_true", help="print JSON")
    language.set_defaults(command=_analyze_language)


def _analyze_language(arguments: argparse.Namespace) -> int:
    from trainer.commands.language import analyze, read_completions, summary, table_rows, write_results
    from trainer.commands.word_lists import WORD_LISTS

    words = WORD_LISTS[arguments.words]
    completions = read_completions(arguments.paths, arguments.step)
    results = analyze(completions, words)
    files = write_results(results, completions, arguments.output, words) if arguments.output else []
    if arguments.json:
        print(json.dumps(summary(results, completions, words), indent=2))
        return 0
    _print_table(table_rows(results))
    print(f"completions: {len(completions.texts)}, mean reward {completions.rewards.mean():.3f}")
    for file in files:
        print(f"written:     {file}")
    return 0


def _add_upload(commands: Commands) -> None:
    upload = commands.add_parser("upload", help="send an offline run's history to MLflow")
    upload.add_argument("run_dir", type=Path, help="the run's folder")
    upload.set_defaults(command=_upload)


def _upload(arguments: argparse.Namespace) -> int:
    from trainer.tracking.tracker import upload

    run_id = upload(arguments.run_dir)
    print(f"uploaded {arguments.run_dir} as MLflow run {run_id}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
