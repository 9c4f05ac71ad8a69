"""``trainer init``: write a starter project."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated

from loptune.errors import ConfigError, StorageError
from loptune.run_names import command_line
from loptune.terminal.commands import Command, Option
from trainer.commands.reference import run_schema
from trainer.policy.architectures import TINY

_TEMPLATES = Path(__file__).parent
_EXAMPLE_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
_RANDOM = "random"  # --model random: a small model is created in the project


@dataclass(frozen=True)
class Project:
    """A starter project that was written."""

    folder: Path
    files: list[Path]
    is_rule: bool  # whether the project contains an update rule


def init(
    folder: Annotated[Path, Option("folder to create", metavar="DIR", is_path=True)],
    *,
    model: Annotated[
        str,
        Option(
            "model to train: Hub name, folder, smollm2-135m (needs no Hub access), or random "
            "(small random weights, to try data and reward in seconds)"
        ),
    ] = _EXAMPLE_MODEL,
    rule: Annotated[
        bool,
        Option("write an update rule with its test and a search space that compares it with GRPO"),
    ] = False,
) -> Project:
    """Write a starter project: run file, reward, data, search space. Prints the commands to try
    next.

    Raises:
        ConfigError: a file already exists, or the model is the built-in tiny model.
        StorageError: the folder cannot be written, or, with ``rule``, already exists.
    """
    if rule:
        return Project(folder, _write_rule(folder), is_rule=True)
    return Project(folder, write_project(folder, model), is_rule=False)


def _show_project(project: Project) -> None:
    for path in project.files:
        print(f"written: {path}")
    print(command_line("cd", str(project.folder)))
    if project.is_rule:
        print(
            "python -m pytest               # test the rule's equation\n"
            "sweep run rule_space.yaml      # tune the rule and GRPO separately\n"
            "sweep confirm my-rule          # run the best configuration of each on fresh seeds"
        )
    else:
        print(
            "trainer run run.yaml --dry-run    # one prompt, one scored completion, memory and "
            "steps\n"
            "trainer run run.yaml              # train\n"
            "sweep plan space.yaml             # show the sweep without starting it\n"
            "sweep schema > space.schema.json  # for completion in editors with a YAML language "
            "server"
        )


def _write_rule(folder: Path) -> list[Path]:
    """Write the project of an update rule.

    Raises:
        StorageError: the folder exists or cannot be written.
    """
    try:
        shutil.copytree(_TEMPLATES / "rule_project", folder)
    except OSError as error:
        raise StorageError(
            f"cannot create the folder: {error.strerror}",
            str(folder),
            "choose a new folder",
            code="folder-not-writable",
        ) from error
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _written_model(model: str) -> str:
    """Return a model's name or path as it is written in the project's YAML files."""
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
                f"{folder / name} already exists",
                str(folder),
                "choose a new folder: trainer init DIR",
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


COMMANDS = {
    "init": Command(
        function=init, show=_show_project, fields=None, example="trainer init mine --model random"
    )
}
