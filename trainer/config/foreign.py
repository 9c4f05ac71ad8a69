"""Configuration files of other programs, and ours in the place of one another: what it is and what to write."""

from collections.abc import Mapping
from typing import Any, Literal

from trainer.config.yaml_document import YamlDocument
from trainer.errors import ConfigError

Kind = Literal["run", "space"]

_TRL = {
    "model_name_or_path": "model.name_or_path",
    "dataset_name": "data.train",
    "learning_rate": "optim.lr",
    "num_generations": "rollout.group_size",
    "max_completion_length": "rollout.max_new_tokens",
    "max_prompt_length": "data.max_prompt_tokens",
    "per_device_train_batch_size": "optim.update_batch_size",
    "num_train_epochs": "epochs",
    "beta": "algorithm.kl_coef",
    "epsilon": "algorithm.clip_ratio_low",
    "epsilon_high": "algorithm.clip_ratio_high",
    "reward_funcs": "reward.functions",
    "output_dir": "--runs-dir",
}
_VERL = {
    "actor_rollout_ref": "model, rollout, algorithm and optim",
    "critic": "nothing: no rule here has a critic",
    "reward_model": "reward",
    "trainer": "max_steps, epochs and checkpoint",
}
_WANDB = {
    "method": "search.sampler",
    "metric": "objective",
    "parameters": "parameters, with trainer keys: {optim.lr: {loguniform: [1e-7, 1e-5]}}",
    "early_terminate": "scheduler",
    "run_cap": "search.configurations",
}
_SPACE = {"parameters", "objective", "baselines", "search", "seeds", "scheduler", "limits"}
_RUN = {"model", "data", "reward", "rollout", "algorithm", "optim", "evaluation", "extends"}


def refuse_foreign(document: YamlDocument, kind: Kind) -> None:
    """Name the program that a file was written for, where it was not written for this command.

    Args:
        document: the file as it was read.
        kind: what the command reads: a run file or a search space.

    Raises:
        ConfigError: what the file is, and which keys to write instead of its own.
    """
    data = document.data
    if kind == "run" and _few(data, _SPACE, 2) and "search" in data:
        raise ConfigError("this is a search space, not a run", document.source, f"sweep run {document.source}")
    if kind == "space" and _few(data, _RUN, 2):
        hint = f"trainer run {document.source}, or a space with trainer: {{preset: {document.source}}}"
        raise ConfigError("this is a run file, not a search space", document.source, hint)
    if "program" in data or data.get("method") in ("bayes", "grid", "random"):
        _refuse("a W&B sweep", _WANDB, document, "; `trainer init DIR` writes a space to start from")
    if _few(data, set(_VERL), 2) and "actor_rollout_ref" in data:
        _refuse("a configuration of verl", _VERL, document, "; `trainer init DIR` writes a run to start from")
    if _few(data, set(_TRL), 2):
        _refuse("a configuration of TRL", _TRL, document, "; `trainer init DIR` writes a run to start from")


def _few(data: Mapping[str, Any], known: set[str], least: int) -> bool:
    return len(known & data.keys()) >= least


def _refuse(what: str, ours: Mapping[str, str], document: YamlDocument, more: str) -> None:
    pairs = ", ".join(f"{key} -> {ours[key]}" for key in document.data if key in ours)
    raise ConfigError(f"this is {what}, not a file of loptune", document.source, f"write {pairs}{more}")
