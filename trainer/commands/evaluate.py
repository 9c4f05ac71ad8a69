"""``trainer evaluate``: a model's accuracy on evaluation sets, with confidence intervals."""

import itertools
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from loptune.errors import ConfigError, MissingError, StorageError
from loptune.run_names import MAX_NAME_LENGTH, check_name, run_path
from loptune.section import Count
from loptune.terminal.commands import Option, RunsDir, printing_command
from loptune.terminal.interrupt import defer_interrupt
from loptune.terminal.main import world_size
from loptune.yaml_document import parse_override
from trainer.checkpoint.on_disk import damaged_files, intact_checkpoints, steps_on_disk
from trainer.commands.start import check_no_sweep
from trainer.config.evaluation import OVERRIDABLE_PER_SET
from trainer.config.extends import find_spec
from trainer.config.schema import TrainConfig, apply_overrides, load_config
from trainer.policy.architectures import TINY
from trainer.preflight import check_model, check_sources
from trainer.run_folder import RunFolder
from trainer.threads import limit_spinning
from trainer.tracking.writers import check_installed

_logger = logging.getLogger(__name__)

_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class ResolvedModel:
    """A model folder or Hub name, with the configuration file of its run and the training step (0
    if unknown).
    """

    name_or_path: str
    run_config: Path | None
    step: int


def resolve_model(model: str) -> ResolvedModel:
    """Resolve ``tiny``, a Hub name, a model folder, a checkpoint, or a run (its newest intact
    checkpoint).

    Raises:
        MissingError: the run has no intact checkpoint.
        StorageError: the checkpoint is damaged.
    """
    folder = Path(model).expanduser()
    if RunFolder(folder).config.is_file() and not (folder / "config.json").is_file():
        newest = next(intact_checkpoints(RunFolder(folder).checkpoints), None)
        if newest is None:
            raise MissingError(
                f"run {folder.name} has no intact checkpoint",
                str(folder),
                "train it first",
                code="no-checkpoint",
            )
        folder = newest
    step = _STEP.fullmatch(folder.name)
    if step is None or not folder.is_dir():
        return ResolvedModel(model, None, 0)
    damaged = damaged_files(folder)
    if damaged:
        raise StorageError(
            f"the checkpoint is damaged: {', '.join(damaged)}",
            str(folder),
            "evaluate another step of the run",
            code="checkpoint-damaged",
        )
    config: Path | None = RunFolder(folder.parent.parent).config
    if config is not None and not config.is_file():
        config = None
    return ResolvedModel(str(folder), config, int(step[1]))


def last_checkpoints(run: Path, number: int) -> list[ResolvedModel]:
    """Return the last ``number`` checkpoints that a run wrote, oldest first.

    Raises:
        MissingError: the run has fewer intact checkpoints, or one between them is missing.
    """
    root = RunFolder(run).checkpoints
    newest_first = list(itertools.islice(intact_checkpoints(root), number))
    if len(newest_first) < number:
        steps = ", ".join(str(step) for step in reversed(steps_on_disk(root))) or "none"
        raise MissingError(
            f"{run.name} has {len(newest_first)} intact checkpoints, not {number}",
            f"{root}, steps: {steps}",
            "choose a smaller --last, or train with a larger checkpoint.keep_last",
            key="last",
            code="too-few-checkpoints",
        )
    # The best checkpoint is kept, too: it may be older than ones that the run has deleted.
    missing = _missing_between(
        run, [int(folder.name.removeprefix("step-")) for folder in newest_first]
    )
    if missing:
        raise MissingError(
            f"{run.name} no longer has all of its last {number} checkpoints (deleted or damaged: "
            f"step {', '.join(map(str, missing))})",
            str(root),
            "choose a smaller --last, or train with a larger checkpoint.keep_last",
            key="last",
            code="last-checkpoints-missing",
        )
    return [resolve_model(str(folder)) for folder in reversed(newest_first)]


def _missing_between(run: Path, newest_first: Sequence[int]) -> list[int]:
    """Return the checkpoint steps of a run between the given steps that are not among them."""
    config = RunFolder(run).config
    if not config.is_file():
        return []
    every = load_config(str(config)).checkpoint.every_steps
    first = newest_first[-1] // every * every + every
    return [step for step in range(first, newest_first[0], every) if step not in newest_first]


def evaluate(
    model: Annotated[
        str, Option("run or trial (newest checkpoint), checkpoint, model folder, Hub name, or tiny")
    ],
    overrides: Annotated[
        Sequence[str], Option("settings, e.g. data.task=math", metavar="key=value")
    ] = (),
    *,
    spec: Annotated[
        str | None,
        Option("preset or YAML file with the evaluation settings (default: the model's run)"),
    ] = None,
    sets: Annotated[
        list[str] | None,
        Option(
            "evaluation set: file, Hub name, generated, or {source: ...}", metavar="NAME=SOURCE"
        ),
    ] = None,
    completions: Annotated[
        Count | None, Option("completions per problem", metavar="N", short="-k")
    ] = None,
    max_new_tokens: Annotated[
        Count | None, Option("maximum tokens per completion (default: as in training)", metavar="N")
    ] = None,
    temperature: Annotated[
        float | None, Option("sampling temperature; 0 is greedy", metavar="T")
    ] = None,
    last: Annotated[
        Count | None,
        Option(
            "evaluate a run's last N checkpoints and report the mean over them, as "
            "arXiv:2505.12929 does with 3 (default: the newest checkpoint only)",
            metavar="N",
        ),
    ] = None,
    name: Annotated[
        str | None, Option("name of the recorded evaluation (default: model name and time)")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    offline: Annotated[bool, Option("do not contact MLflow")] = False,
    json: Annotated[bool, Option("print JSON")] = False,
) -> int:
    """Measure a model's accuracy and pass@k, by difficulty, with intervals. The result is recorded
    like a run.

    Returns:
        Exit status.

    Raises:
        UserError: the model does not exist, its settings are wrong, or scoring failed too often.
    """
    models = _models(run_path(model, runs_dir), last)
    given = {
        "evaluation.sets": sets,
        "evaluation.completions_per_problem": completions,
        "evaluation.max_new_tokens": max_new_tokens,
        "evaluation.temperature": temperature,
        "tracking.offline": offline or None,
    }
    flags = {key: value for key, value in given.items() if value is not None}
    configs = [evaluation_config(each, spec, overrides, flags) for each in models]
    mean = None
    if last is None:
        records = [check_name(name or record_name(model))]
    else:
        mean, records = _names_of_checkpoints(name, model, [each.step for each in models])
    _check_free([*records, *filter(None, [mean])], runs_dir)
    _check_loadable(configs[0], spec)
    with defer_interrupt():
        limit_spinning()
        from trainer.commands.evaluation_run import run_evaluations  # torch takes seconds to import

    steps = [each.step for each in models]
    return run_evaluations(configs, steps, records, mean, runs_dir, json)


def _models(place: Path, last: int | None) -> list[ResolvedModel]:
    """Return the model at a place, or the ``last`` checkpoints of the run there.

    Raises:
        ConfigError: with ``last``, there is no run at the place.
        MissingError, StorageError: as in `resolve_model` and `last_checkpoints`.
    """
    check_no_sweep(place)
    if last is None:
        return [resolve_model(str(place))]
    if not RunFolder(place).checkpoints.is_dir() and not RunFolder(place).config.is_file():
        hint = "remove --last"
        if _STEP.fullmatch(place.name) and place.is_dir():
            hint = f"pass its run, {place.parent.parent}, or remove --last"
        raise ConfigError(
            f"--last needs a run, and {place} is not one", "--last", hint, "last", code="not-a-run"
        )
    return last_checkpoints(place, last)


def _names_of_checkpoints(
    name: str | None, model: str, steps: Sequence[int]
) -> tuple[str, list[str]]:
    """Return the names of the records of the mean, and of each checkpoint."""
    endings = [f"-step-{step}" for step in steps]
    mean = check_name(name or record_name(model, room=max(map(len, endings))))
    return mean, [check_name(f"{mean}{ending}") for ending in endings]


def _check_free(records: Sequence[str], runs_dir: Path) -> None:
    for record in records:
        if (runs_dir / record).exists():
            raise ConfigError(
                f"{record} already exists",
                str(runs_dir / record),
                "choose another --name",
                code="name-taken",
            )


def _check_loadable(config: TrainConfig, spec: str | None) -> None:
    """Check the files, packages and the model before torch is imported."""
    spec_file = None
    if spec:
        spec_file = find_spec(spec).path
    check_sources(config, spec_file, trains=False)
    check_installed(config)
    check_model(config)


def evaluation_config(
    named: ResolvedModel, spec: str | None, overrides: Sequence[str], flags: Mapping[str, Any]
) -> TrainConfig:
    """Return the configuration of the evaluation: ``spec``, or else the configuration of the
    model's run (``tiny_kk`` for the built-in tiny model), with overrides applied.

    ``flags`` has more overrides by dotted key; ``evaluation.sets`` is a list of ``NAME=SOURCE``.

    Raises:
        ConfigError: no configuration defines the evaluation sets, or a setting is invalid.
        MissingError: a configuration file does not exist.
    """
    if spec is None and named.run_config is None and named.name_or_path != TINY:
        raise ConfigError(
            f"no evaluation settings for {named.name_or_path}: it is not in a run folder",
            "--spec",
            "pass the name of a run in `trainer ls`, or add --spec PRESET_OR_FILE, see "
            "`trainer presets`",
            code="no-evaluation-settings",
        )
    if spec is None:
        spec = "tiny_kk" if named.run_config is None else str(named.run_config)
    base = load_config(spec)
    asked = {**dict(map(parse_override, overrides)), **flags}
    changes: dict[str, Any] = {}
    of_all_sets = {f"evaluation.{key}" for key in OVERRIDABLE_PER_SET}
    if "evaluation.sets" in flags:
        asked["evaluation.sets"] = dict(map(parse_set, flags["evaluation.sets"]))
    elif "evaluation.sets" not in asked and of_all_sets & asked.keys():
        # a command-line value applies to every set
        for name in base.evaluation.sets:
            for key in OVERRIDABLE_PER_SET:
                changes[f"evaluation.sets.{name}.{key}"] = None
    if "evaluation.completions_per_problem" in asked:
        # the run's values of k may exceed this number
        changes["evaluation.pass_at_k"] = []
    if {"evaluation.sets", "evaluation.completions_per_problem"} & asked.keys():
        # the run's composite may contain a set or pass@K that is not measured here
        changes["evaluation.composite"] = {}
    changes |= asked
    revision = None
    if base.model.name_or_path == named.name_or_path:
        revision = base.model.revision
    changes |= {
        "model.name_or_path": named.name_or_path,
        "model.revision": asked.get("model.revision", revision),
        # every rank loads the full model: nothing is trained
        "parallel.strategy": "ddp" if world_size() > 1 else "none",
        "parallel.offload": "none",
        "rollout.vllm.tensor_parallel": 1,
        "tracking.tags": {},  # the run's tags would make this record look like a trial of its sweep
    }
    several = asked.get("evaluation.completions_per_problem", 1) != 1
    if several and base.evaluation.temperature == 0 and "evaluation.temperature" not in asked:
        temperature = asked.get("rollout.temperature", base.rollout.temperature)
        changes["evaluation.temperature"] = temperature
        _logger.info("sampling at the training temperature, %s", temperature)
    return apply_overrides(base, changes, source="command line")


def record_name(model: str, room: int = 0) -> str:
    """Return ``evaluate-MODEL-TIME``, short enough for an ending of ``room`` characters."""
    parts = [
        part
        for part in re.split(r"[^A-Za-z0-9]+", model)
        if part not in ("", "checkpoints", "runs")
    ]
    started = time.strftime("%Y%m%d-%H%M%S")
    longest = MAX_NAME_LENGTH - len(f"evaluate--{started}") - room
    return f"evaluate-{'-'.join(parts)[-longest:].strip('-')}-{started}"


def parse_set(text: str) -> tuple[str, dict[str, Any]]:
    """Parse ``NAME=SOURCE`` as a dataset; the default split is ``test``.

    The source is a file, a Hub name, ``generated``, or a YAML mapping with the keys of a dataset.

    Raises:
        ConfigError: invalid syntax.
    """
    if "=" not in text:
        text = f"{text}="
    name, value = parse_override(text)
    source = {"source": value} if isinstance(value, str) else value
    if not isinstance(source, dict):
        raise ConfigError(
            f"invalid source: {value}",
            f"--sets {name}",
            f"write {name}=FILE, or {name}='{{source: FILE}}'",
            code="invalid-source",
        )
    return name, {"split": "test", **source}


COMMANDS = {"evaluate": printing_command(evaluate, "trainer evaluate ar -k 8")}
