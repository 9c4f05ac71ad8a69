"""``trainer analyze-language``: figure 5 of the paper [arXiv:2505.12929]."""

import argparse
from dataclasses import asdict

from trainer.paper.language import analyze, read_completions, table_rows
from trainer.shell.arguments import add_json, add_runs_dir
from trainer.shell.run_folder import run_path
from trainer.shell.table import print_columns, print_json


def add_analyze_language(parser: argparse.ArgumentParser) -> None:
    """``trainer analyze-language``."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run or an evaluation")
    parser.add_argument("--step", type=int, help="use only completions logged at this training step")
    add_json(parser)
    add_runs_dir(parser)
    parser.set_defaults(command=_analyze_language)


def _analyze_language(arguments: argparse.Namespace) -> int:
    runs = [run_path(path, arguments.runs_dir) for path in arguments.runs]
    completions = read_completions(runs, arguments.step)
    results = analyze(completions)
    if arguments.json:
        print_json([asdict(result) for result in results])
        return 0
    print_columns(table_rows(results))
    print(f"completions: {len(completions.texts)}, mean reward {completions.rewards.mean():.3f}")
    return 0
