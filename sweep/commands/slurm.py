"""``sweep slurm``: submit a sweep on several nodes as a job of Slurm, which resumes it when it is requeued."""

import argparse
import shlex
import shutil
import subprocess
from pathlib import Path

from sweep.commands.start import add_space, load
from sweep.trials.cluster import Node, check_fit
from trainer.errors import MissingError
from trainer.shell.arguments import Commands, add_runs_dir, count

SCRIPT = Path(__file__).with_name("sweep.sbatch")


def add_commands(commands: Commands) -> None:
    """Add ``sweep slurm``."""
    slurm = commands.add_parser("slurm", help="run a new sweep as a job of Slurm")
    add_space(slurm)
    add_runs_dir(slurm)
    slurm.add_argument("--nodes", type=count, default=1, help="nodes of the job (default: 1)")
    slurm.add_argument("--gpus", type=count, default=0, help="GPUs of a node (default: none)")
    slurm.add_argument("--cpus", type=count, required=True, help="CPU cores of a node")
    slurm.add_argument("--sbatch", action="append", default=[], help="further option, e.g. --sbatch=--time=24:00:00")
    slurm.add_argument("--dry-run", action="store_true", help="print the command and submit nothing")
    slurm.set_defaults(command=_slurm)


def _slurm(arguments: argparse.Namespace) -> int:
    sweep = load(arguments)
    check_fit(sweep.spec.resources, [Node(arguments.cpus, arguments.gpus)] * arguments.nodes)
    name, runs = sweep.folder.name, arguments.runs_dir.absolute()
    options = ["sbatch", f"--job-name={name}", f"--nodes={arguments.nodes}", f"--cpus-per-task={arguments.cpus}"]
    options += [f"--gpus-per-node={arguments.gpus}"] if arguments.gpus else []
    options += [f"--output={runs.parent / name}-%j.log", *arguments.sbatch, str(SCRIPT), name, str(runs)]
    run = ["sweep", "run", arguments.space, *arguments.overrides, "--name", name]
    command = [*options, *run, *(["--offline"] if arguments.offline else [])]
    print(shlex.join(command), flush=True)
    if arguments.dry_run:
        return 0
    if shutil.which("sbatch") is None:
        raise MissingError(
            "there is no sbatch on this machine", "PATH", "type it on a login node of the Slurm cluster"
        )
    return subprocess.run(command).returncode
