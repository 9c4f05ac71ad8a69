"""What one rank does in tests of the check at load: sound runs and one whose rank 1 samples from
other weights.
"""

import copy
from pathlib import Path
from typing import Any

import torch

from loptune.errors import UserError
from tests.invariants.ranks import be_a_rank
from tests.trainer.load_check.runs import Run


def work(folder: Path, job: dict[str, Any]) -> dict[str, str]:
    """Check every case and return its error, or "" if it passes."""
    results = {}
    for name, case in job["cases"].items():
        run = Run(Path(job["model"]), **case["settings"])
        if run.parallel.rank == case.get("stale_rank"):
            run.engine.model = copy.deepcopy(run.engine.model)
            with torch.no_grad():
                run.engine.model.model.layers[0].mlp.up_proj.weight.mul_(1.5)
        results[name] = ""
        try:
            run.check()
        except UserError as error:
            results[name] = str(error)
        run.parallel.close()
    return results


if __name__ == "__main__":
    be_a_rank(work)
