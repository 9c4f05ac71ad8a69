"""Run a Python function as a trial: ``python -m sweep.programs.call module:train`` calls
``train(config, report)``.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from loptune.reporting import evaluation_line
from rewards.user_code import load_named
from trainer.run_folder import RunFolder


class Report:
    """``report(step, {"eval/accuracy": 0.61})`` records an evaluation; the trial's folder is
    ``report.folder``.
    """

    def __init__(self) -> None:
        self.folder = Path(os.environ["LOPTUNE_OUT"])
        # whether an earlier process already used the folder
        self.resumed = os.environ["LOPTUNE_RESUME"] == "1"

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line to ``metrics.jsonl``."""
        line = evaluation_line(metrics, step)
        with RunFolder(self.folder).metrics.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    train = load_named(sys.argv[1], "function")  # also searches the project's folder, despite -P
    train(json.loads(Path(os.environ["LOPTUNE_CONFIG"]).read_text(encoding="utf-8")), Report())
