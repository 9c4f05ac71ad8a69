"""The ``trainer`` command."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.commands.arguments import (
    PAGES,
    Commands,
    add_json,
    add_runs_dir,
    count,
    parse_arguments,
    port,
    positive,
    version_text,
)
from trainer.commands.export import add_export
from trainer.commands.paper import add_analyze_language, add_diagnose, add_timing
from trainer.commands.rehearse import add_rehearse
from trainer.commands.run_folder import check_name, run_path
from trainer.commands.start import Start, rank, saved_run, start_run
from trainer.config.schema import load_config
from trainer.errors import INTERRUPTED, ConfigError, UserError
from trainer.files import storage_fault


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
        _add_runs,
        _add_init,
        _add_presets,
        _add_options,
        _add_metrics,
        add_diagnose,
        add_timing,
        add_rehearse,
        _add_evaluate,
        _add_serve,
        add_analyze_language,
        add_export,
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
    add_runs_dir(parser)
    parser.add_argument(
        "--start-over", action="store_true", help="resume from step 0; the old record stays in earlier-N"
    )
    parser.add_argument(
        "--offline", action="store_true", help="do not contact MLflow; `trainer upload` sends it later"
    )


def _add_runs(commands: Commands) -> None:
    ls = commands.add_parser("ls", help="list the runs")
    add_runs_dir(ls)
    add_json(ls)
    ls.set_defaults(command=_ls)
    status = commands.add_parser("status", help="where a run stands")
    add_runs_dir(status)
    add_json(status)
    status.add_argument("name", help="name of the run, see `trainer ls`")
    status.set_defaults(command=_status)
    ui = commands.add_parser("ui", help="open MLflow on this machine")
    add_runs_dir(ui)
    ui.add_argument("name", nargs="?", help="run to open (default: the table of runs)")
    ui.add_argument("--port", type=port, default=5000, help="port on 127.0.0.1 (default: 5000)")
    ui.set_defaults(command=_ui)


def _ls(arguments: argparse.Namespace) -> int:
    from trainer.commands.runs import list_runs

    list_runs(arguments.runs_dir, arguments.json)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from trainer.commands.runs import existing_run, show_run

    show_run(existing_run(arguments.runs_dir, arguments.name), arguments.runs_dir, arguments.json)
    return 0


def _ui(arguments: argparse.Namespace) -> int:
    from trainer.commands.runs import open_ui

    open_ui(arguments.runs_dir, arguments.name, arguments.port)


def _add_init(commands: Commands) -> None:
    init = commands.add_parser("init", help="a folder with a run file, a reward, data and a sweep to start from")
    init.add_argument("folder", type=Path, metavar="DIR", help="folder to make")
    init.add_argument(
        "--model", help="model to train: hub name, folder, or smollm2-135m, small and not of the hub"
    )
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
    add_json(presets)
    presets.add_argument("--ranks", type=count, help="of the memory shown (default: 4 with DeepSpeed, else 1)")
    presets.add_argument("--gpu-gb", type=positive, help="memory of one GPU (default: this machine's, else 80)")
    presets.set_defaults(command=_presets)


def _presets(arguments: argparse.Namespace) -> int:
    from trainer.commands.presets import print_preset, print_presets

    if arguments.name:
        print_preset(arguments.name, arguments.json, arguments.ranks, arguments.gpu_gb)
    else:
        print_presets(arguments.json)
    return 0


def _add_options(commands: Commands) -> None:
    options = commands.add_parser("options", help="every configuration key: default, allowed values, meaning")
    options.add_argument("word", nargs="?", default="", help="only keys with this in their name")
    add_json(options)
    options.set_defaults(command=_options)


def _options(arguments: argparse.Namespace) -> int:
    from trainer.commands.reference import print_options

    print_options(arguments.word, arguments.json)
    return 0


def _add_metrics(commands: Commands) -> None:
    metrics = commands.add_parser("metrics", help="every metric that is logged, its formula and unit")
    metrics.add_argument("word", nargs="?", default="", help="only metrics with this in their name")
    add_json(metrics)
    metrics.add_argument("--markdown", action="store_true", help="print the page docs/metrics.md")
    metrics.set_defaults(command=_metrics)


def _metrics(arguments: argparse.Namespace) -> int:
    from trainer.commands.reference import metrics_page, print_metrics

    if arguments.markdown:
        print(metrics_page(), end="")
    else:
        print_metrics(arguments.word, arguments.json)
    return 0


def _add_evaluate(commands: Commands) -> None:
    evaluate = commands.add_parser(
        "evaluate", help="accuracy and pass@k of a model, by difficulty, with intervals"
    )
    evaluate.add_argument(
        "model", help="a run (its newest checkpoint), a checkpoint, a model folder, a hub name, or tiny"
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
    add_json(evaluate)
    evaluate.add_argument("--out", type=Path, help="file that gets the JSON besides runs/NAME/evaluation.json")
    evaluate.add_argument("--name", help="name of the record (default: the model's name and the time)")
    add_runs_dir(evaluate)
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

    model = str(run_path(arguments.model, arguments.runs_dir))
    models = last_checkpoints(model, arguments.last) if arguments.last else [find_model(model)]
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


def _add_upload(commands: Commands) -> None:
    upload = commands.add_parser("upload", help="send an offline run's history to MLflow")
    upload.add_argument("run", help="name or folder of the run")
    add_runs_dir(upload)
    upload.set_defaults(command=_upload)


def _upload(arguments: argparse.Namespace) -> int:
    from trainer.tracking.tracker import upload

    run_dir = run_path(arguments.run, arguments.runs_dir)
    run_id = upload(run_dir)
    print(f"uploaded {run_dir} as MLflow run {run_id}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
