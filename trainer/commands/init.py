"""``trainer init``: write a starter project."""

import argparse
import json
import re
import shutil
from pathlib import Path
from string import Template

from loptune.errors import ConfigError, StorageError
from trainer.commands.reference import run_schema
from trainer.policy.architectures import TINY

_TEMPLATES = Path(__file__).parent
_EXAMPLE_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
_RANDOM = "random"  # --model random: a small one is made in the project


def add_init(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer init``."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to create")
    parser.add_argument(
        "--model",
        default=_EXAMPLE_MODEL,
        help="model to train: Hub name, folder, smollm2-135m (needs no Hub access), or "
        "random (small random weights, to try data and reward in seconds) (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--rule",
        action="store_true",
        help="write an update rule with its test and a search space that compares it with GRPO",
    )


def carry_out_init(arguments: argparse.Namespace) -> int:
    """Carry out ``trainer init``."""
    if arguments.rule:
        return _init_rule(arguments.folder)
    for path in write_project(arguments.folder, arguments.model):
        print(f"written: {path}")
    print(
        f"cd {arguments.folder}\ntrainer run run.yaml --dry-run    # one prompt, one scored "
        "completion, memory and steps\ntrainer run run.yaml              # train\nsweep plan "
        "space.yaml             # show the sweep; starts nothing\n"
        "sweep schema > space.schema.json  # for completion in editors with a YAML language server"
    )
    return 0


def _init_rule(folder: Path) -> int:
    try:
        shutil.copytree(_TEMPLATES / "rule_project", folder)
    except OSError as error:
        raise StorageError(
            f"cannot write there: {error.strerror}",
            str(folder),
            "choose a new folder",
            code="folder-not-writable",
        ) from error
    print(
        f"cd {folder}\npython -m pytest               # test the rule's equation\nsweep run "
        "rule_space.yaml      # tune the rule and GRPO separately\nsweep confirm my-rule   "
        "       # run the best of each on fresh seeds"
    )
    return 0


def _written_model(model: str) -> str:
    """Return a model's name or path as the project's YAML files have it."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        model = str(folder.resolve())  # the commands run inside the project folder
    elif model == _RANDOM:
        model = "./model"
    # quote names that YAML would not read as a string
    return model if re.fullmatch(r"[\w./-]+", model) else json.dumps(model)


def write_project(folder: Path, model: str = _EXAMPLE_MODEL) -> list[Path]:
    """Write a run file, a search space, a reward with its test, and example data. Return their
    paths.

    Raises:
        ConfigError: a file already exists, or the model is the built-in tiny model. Nothing is
        written.
        StorageError: the folder cannot be written.
    """
    if model == TINY:
        raise ConfigError(
            "the built-in tiny model only understands its generated puzzles",
            "--model",
            "use --model random (tries data and reward in seconds) or smollm2-135m (98 MB, "
            "trains on a CPU), or run the preset: trainer run tiny_kk",
            code="tiny-reads-only-puzzles",
        )
    source = _TEMPLATES / "project"
    files = [entry for entry in source.iterdir() if entry.is_file()]
    texts = {}
    for file in sorted(files, key=lambda file: file.name):
        texts[file.name] = file.read_text("utf-8")
    for name in texts:
        if (folder / name).exists():
            raise ConfigError(
                f"{folder / name} exists",
                str(folder),
                "give a new folder: trainer init DIR",
                code="files-exist",
            )
    gpus = "1" if shutil.which("nvidia-smi") else "0"
    values = {"model": _written_model(model), "gpus": gpus}
    for name in texts:
        if name.endswith(".yaml"):
            texts[name] = Template(texts[name]).safe_substitute(values)
    texts["run.schema.json"] = run_schema()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise StorageError(
            f"cannot write the project: {error.strerror}",
            str(folder),
            "choose another folder",
            code="folder-not-writable",
        ) from error
    written = [folder / name for name in texts]
    if model == _RANDOM and not Path(model).is_dir():
        from trainer.policy.random_model import write_random_model  # torch takes seconds to import

        write_random_model(folder / "model")
        written.append(folder / "model")
    return written
