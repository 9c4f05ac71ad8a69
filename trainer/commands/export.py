"""``trainer export``: write a trained model and its model card for transformers, vLLM or `hf
upload`.
"""

import json
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import yaml

from loptune.errors import ConfigError, MissingError, StorageError
from loptune.files import write_atomically
from loptune.terminal.commands import Command, Option, RunsDir
from trainer.checkpoint.on_disk import damaged_files, steps_on_disk
from trainer.commands.start import existing_run, rule_of
from trainer.config.schema import TrainConfig, load_config
from trainer.rules.names import label_of
from trainer.run_folder import RunFolder
from trainer.tracking.inputs import recorded_files

_FOR_RESUMPTION = shutil.ignore_patterns("manifest.json*", "training_state*")


@dataclass(frozen=True)
class ExportedModel:
    """A model that was written from a checkpoint."""

    folder: Path
    step: int


def export(
    name: Annotated[str, Option("run name (see `trainer ls`) or trial folder")],
    *,
    runs_dir: RunsDir = Path("runs"),
    step: Annotated[
        int | None, Option("step of the checkpoint to export (default: the newest)")
    ] = None,
    output: Annotated[
        Path | None, Option("folder to create (default: NAME-model)", is_path=True)
    ] = None,
    merge: Annotated[bool, Option("merge the adapter into the base weights")] = False,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Option(
            "dtype of the weights (default: auto, the base model's dtype; adapters stay in float32)"
        ),
    ] = "auto",
) -> ExportedModel:
    """Write a run's model for transformers, vLLM or the Hub. The model card contains the
    evaluation, the settings, and the files on which the model was trained.

    Raises:
        ConfigError: the output exists, or there is no adapter to merge.
        MissingError: there is no such run or checkpoint, or the base model is missing, which
            ``merge`` and the dtype ``auto`` read.
        StorageError: the checkpoint is damaged, or the model cannot be written.
    """
    run = existing_run(runs_dir, name)
    folder = output or Path(f"{run.name}-model")
    return ExportedModel(folder, _export_model(run, folder, step=step, merge=merge, dtype=dtype))


def _show_export(exported: ExportedModel) -> None:
    print(
        f"model: {exported.folder}  (step {exported.step}; README.md is the model card, run.yaml "
        "the configuration)"
    )


def _export_model(
    run: Path, output: Path, *, step: int | None, merge: bool, dtype: str = "auto"
) -> int:
    """Copy a checkpoint without its resume state, write the model card, and return the step. Raises
    like `export`.
    """
    if output.exists():
        raise ConfigError(
            f"{output} already exists",
            "--output",
            "choose a folder that does not exist",
            code="output-exists",
        )
    folder = RunFolder(run)
    steps = steps_on_disk(folder.checkpoints)
    if not steps:
        raise MissingError(
            f"{run.name} has no checkpoint",
            str(folder.checkpoints),
            "train it first",
            code="no-checkpoint",
        )
    if step is not None and step not in steps:
        there = ", ".join(map(str, sorted(steps)))
        raise MissingError(
            f"no checkpoint of step {step}",
            str(folder.checkpoints),
            f"available: {there}",
            code="no-such-step",
        )
    step = steps[0] if step is None else step
    checkpoint = folder.checkpoint(step)
    damaged = damaged_files(checkpoint)
    if damaged:
        raise StorageError(
            f"the checkpoint is damaged: {', '.join(damaged)}",
            str(checkpoint),
            "choose another --step",
            code="checkpoint-damaged",
        )
    config = load_config(str(folder.config))
    if merge and config.model.lora.r == 0:
        raise ConfigError(
            "the run trained full weights and has no adapter to merge",
            "--merge",
            "leave out --merge",
            code="no-adapter-to-merge",
        )
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(checkpoint, partial, ignore=_FOR_RESUMPTION)
    except OSError as error:
        raise StorageError(
            f"cannot write the model: {error.strerror or error}",
            str(output),
            "choose another --output",
            code="model-not-written",
        ) from error
    is_adapter = config.model.lora.r > 0 and not merge
    if merge:
        _merge(config, partial)
    _finish_weights(config, partial, is_adapter=is_adapter, dtype=dtype)
    shutil.copyfile(folder.config, partial / "run.yaml")
    write_atomically(partial / "README.md", _card(run, config, step, is_adapter))
    for path in (partial, *partial.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    partial.rename(output)
    return step


def _merge(config: TrainConfig, folder: Path) -> None:
    """Replace the adapter in a folder with the merged model, in float32."""
    import torch  # slow to import, and only needed here

    from trainer.policy.load import load_policy

    source = config.model.model_copy(update={"name_or_path": str(folder)})
    model = load_policy(source, torch.device("cpu"), torch.float32)
    for path in folder.glob("adapter_*"):
        path.unlink()
    model.save_pretrained(folder)


def _finish_weights(config: TrainConfig, folder: Path, *, is_adapter: bool, dtype: str) -> None:
    """Convert the exported weights to ``dtype``. For a full model, also record its dtype and, as
    EOS, the tokens that ended the run's completions.

    Args:
        config: the run's configuration.
        folder: the exported model or adapter.
        is_adapter: whether the folder has only an adapter.
        dtype: name of a dtype; ``auto`` is the base model's dtype, or float32 for an adapter.
    """
    from trainer.policy.load import load_tokenizer  # slow to import, and only needed here
    from trainer.policy.weights import convert_weights, stored_dtype
    from trainer.rollouts.collect import stop_tokens

    if dtype == "auto" and is_adapter:
        dtype = "float32"
    elif dtype == "auto":
        try:
            dtype = stored_dtype(config.model)
        except MissingError as error:
            raise MissingError(
                f"the dtype of the base model is unknown: {error.what}",
                error.where,
                "pass --dtype bfloat16 or --dtype float32",
                code="base-missing",
            ) from error
    convert_weights(folder, dtype)
    if is_adapter:
        return
    settings = json.loads((folder / "config.json").read_text("utf-8"))
    write_atomically(
        folder / "config.json", json.dumps(settings | {"dtype": dtype}, indent=2) + "\n"
    )
    file = folder / "generation_config.json"
    generation = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    # the run's configuration refers to the base model's files, which may have been moved
    exported = config.model.model_copy(update={"name_or_path": str(folder)})
    tokenizer = load_tokenizer(exported)
    ends = list(stop_tokens(config.model_copy(update={"model": exported}), tokenizer))
    known = generation.get("eos_token_id")
    known_ends = known if isinstance(known, list) else [known]
    if set(ends) != set(known_ends):
        generation["eos_token_id"] = ends if len(ends) > 1 else ends[0]
        write_atomically(file, json.dumps(generation, indent=2) + "\n")


def _card(run: Path, config: TrainConfig, step: int, is_adapter: bool) -> str:
    """Return the model card: Hub metadata, evaluation, training and input files."""
    front: dict[str, object] = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", label_of(config.algorithm.advantage.name), "loptune"],
    }
    start = config.model.name_or_path
    if "/" in start and not Path(start).exists():
        front["base_model"] = start
    sources = ", ".join(dataset.source for dataset in config.data.train)
    lines = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {run.name}",
        f"`{start}` after {step} steps of {rule_of(config)}, trained on {sources} with loptune "
        f"{metadata.version('loptune')} for the reward {', '.join(config.reward.functions)}.",
        "## Evaluation",
        _score_table(run, config, step) or f"The run was not evaluated at step {step}.",
        "## Training",
        "All settings are in `run.yaml`, next to this file. To reproduce the run with the "
        "files below: `trainer run run.yaml`.",
        f"These weights are under the license of `{start}`.",
    ]
    if files := recorded_files(run):
        rows = [
            f"| {name} | {file['role']} | {file['sha256'][:12]} |" for name, file in files.items()
        ]
        lines += ["## Files", "\n".join(["| file | role | sha256 |", "|---|---|---|", *rows])]
    return "\n\n".join(lines) + "\n"


def _score_table(run: Path, config: TrainConfig, step: int) -> str:
    """Return the run's evaluation results at a step as a Markdown table, or an empty string if
    there are none.
    """
    # numpy is slow to import, and only needed here
    from trainer.evaluation.correctness import read_correctness
    from trainer.evaluation.estimators import accuracy_interval

    rows = []
    for name, by_step in read_correctness(RunFolder(run).correctness).items():
        if step in by_step:
            fractions, completions = by_step[step]
            low, high = accuracy_interval(fractions, [completions] * len(fractions))
            rows.append(
                f"| {name} | {len(fractions)} | {completions} | {fractions.mean():.3f} | "
                f"{low:.3f} to {high:.3f} |"
            )
    if not rows:
        return ""
    head = [
        "| set | problems | completions each | accuracy | 95% interval |",
        "|---|---|---|---|---|",
    ]
    note = (
        f"Sampled at temperature {config.evaluation.temperature:g}. The interval covers the "
        "choice of problems, not seed noise: one run does not show how the rule performs "
        "with other seeds."
    )
    return "\n".join([*head, *rows, "", note])


COMMANDS = {
    "export": Command(
        function=export, show=_show_export, fields=None, example="trainer export ar --merge"
    )
}
