"""Checks of a search space of loptune's own trainer."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from loptune.declared_metrics import METRICS, is_declared
from loptune.errors import ConfigError
from loptune.yaml_document import YamlDocument, nearest
from sweep.programs.base import Overrides, ResourcesSpec, Values, searched_and_set, seed_searched
from trainer.config.schema import TrainConfig, check_key, value_of, with_overrides
from trainer.planning.advice import correctness_reward
from trainer.planning.memory import Device, check_fits

TEST_SET = "test"


def possible_values(base: TrainConfig, searched: Values, key: str) -> Sequence[Any]:
    """Return the values that a key can have: the searched values, or else the one in the base
    configuration.
    """
    return searched[key] if key in searched else [value_of(base, key)]


def check_parameter(key: str, fixed: Overrides, document: YamlDocument) -> None:
    """Raise ConfigError for the seed, `max_hours`, fixed keys, sections and unknown keys."""
    where = document.where(("parameters", key))
    if key == "seed":
        raise seed_searched(key, where)
    if key == "max_hours":
        raise ConfigError(
            "a time budget cannot be a search parameter",
            where,
            "write limits: {time_budget_s: SECONDS}",
            key=key,
            code="max-hours-in-sweep",
        )
    if key in fixed:
        raise searched_and_set(key, "fixed in trainer.overrides", where, code="searched-and-fixed")
    check_key(key, document.place(("parameters", key)))


def check_objective(
    metric: str, key: str, base: TrainConfig, searched: Values, document: YamlDocument
) -> None:
    """Raise ConfigError for a metric that a search does not measure, or a parameter that changes
    the evaluation.
    """
    _check_not_held_out(metric, key, document)
    _check_ruler_fixed(metric, base, searched, document)
    _check_measured(metric, key, document)


def _check_not_held_out(metric: str, key: str, document: YamlDocument) -> None:
    if metric.endswith(f"/{TEST_SET}"):
        raise document.error(
            f"{metric} belongs to the held-out set, which is not used during a search",
            ("objective", key),
            "choose another set, or eval/accuracy",
            code="held-out-objective",
        )


def _check_ruler_fixed(
    metric: str, base: TrainConfig, searched: Values, document: YamlDocument
) -> None:
    ruler = ["evaluation.", "data.task", "data.max_prompt_tokens"]
    if metric.startswith("eval/reward"):
        ruler.append("reward.")
    if len(_judges(base, searched)) > 1:
        ruler.append("reward.functions")  # the reward determines the accuracy
    for parameter in searched:
        changes = parameter.startswith(tuple(ruler))
        fix = f"set it to one value instead of searching it: trainer.{parameter}=VALUE"
        if parameter == "rollout.max_new_tokens" and _follows_training_limit(base):
            changes = True
            fix = "set a limit for evaluations: trainer.evaluation.max_new_tokens=N"
        if changes:
            raise document.error(
                f"{parameter} changes what {metric} measures, so scores would not be comparable",
                ("parameters", parameter),
                fix,
                code="changes-the-objective",
            )


def _judges(base: TrainConfig, searched: Values) -> set[str]:
    """Return the reward functions that decide correctness in some trial."""
    keys = [key for key in searched if key.startswith("reward.functions")]
    judges = set()
    for values in itertools.product(*(searched[key] for key in keys)):
        changed = with_overrides(base, dict(zip(keys, values, strict=True)))
        judges.add(correctness_reward(changed["reward"]["functions"]))
    return judges


def _follows_training_limit(base: TrainConfig) -> bool:
    """Return whether the completion limit of an evaluation set is the one of training."""
    evaluation = base.evaluation
    return any(evaluation.of_set(name).max_new_tokens is None for name in evaluation.sets)


def _check_measured(metric: str, key: str, document: YamlDocument) -> None:
    if metric.startswith("eval/") and is_declared(metric):
        return
    measured = [name for name in METRICS if name.startswith("eval/")]
    raise document.error(
        f"no evaluation measures {metric}",
        ("objective", key),
        nearest(metric, measured, "trainer metrics eval/"),
        "unmeasured-objective",
    )


def check_workers(
    base: TrainConfig,
    searched: Values,
    resources: ResourcesSpec,
    max_concurrent: int | None,
    document: YamlDocument,
) -> None:
    """Raise ConfigError for workers without a GPU each, several workers without a parallel
    strategy, batches that cannot be split, shared vLLM servers, and missing GPUs.
    """
    workers = resources.workers_per_trial
    gpus = resources.gpus_per_trial
    is_shared = gpus < 1 and workers == 1
    if gpus and not is_shared and gpus != workers:
        what = (
            f"one worker drives one GPU: workers_per_trial is {workers}, gpus_per_trial is {gpus:g}"
        )
        raise document.error(
            what, ("resources",), "set both to the same number", "workers-and-gpus"
        )
    where = document.where(("resources", "workers_per_trial"))
    for key in ("parallel.strategy", "rollout.prompts_per_step", "optim.update_batch_size"):
        for value in possible_values(base, searched, key):
            if value == "none" and workers > 1:
                raise ConfigError(
                    f"{workers} workers per trial, but the trainer's parallel.strategy is none",
                    where,
                    "add trainer.parallel.strategy=ddp or trainer.parallel.strategy=deepspeed",
                    key="resources.workers_per_trial",
                    code="workers-without-strategy",
                )
            if isinstance(value, int) and value % workers:
                raise ConfigError(
                    f"{key} {value} cannot be split over {workers} workers",
                    where,
                    f"make it a multiple of {workers}",
                    key="resources.workers_per_trial",
                    code="indivisible-by-workers",
                )
    rollout = base.rollout
    if rollout.engine != "transformers" and rollout.vllm.mode == "server" and max_concurrent != 1:
        raise document.error(
            "concurrent trials would overwrite each other's weights on the vLLM servers",
            ("limits", "max_concurrent"),
            "add limits.max_concurrent=1, or trainer.rollout.vllm.mode=colocate",
            code="shared-servers",
        )
    if base.parallel.device == "cuda" and gpus == 0:
        raise document.error(
            "the trainer's configuration needs GPUs, but trials have none",
            ("resources", "gpus_per_trial"),
            "add resources.gpus_per_trial=N, or trainer.parallel.device=cpu to run on "
            "the CPU anyway",
            code="trials-without-gpus",
        )


def check_inputs(
    base: TrainConfig,
    configs: Iterable[TrainConfig],
    searched: Values,
    workers: int,
    device: Device,
    metrics: Sequence[str],
) -> None:
    """Load models, tokenizer and data as a trial does, run the custom rules of ``configs`` once,
    and score one row.

    Warn if a trial seems too large for its GPUs. If data or rewards are searched, no row is scored;
    each trial then checks them itself.

    Raises:
        UserError: a model, data file, reward or rule cannot be used, no evaluation measures one of
            ``metrics``, or a trial is too large and `parallel.strict_memory` is set.
    """
    # torch and transformers take seconds to import; missing GPUs are reported before that
    from trainer.algorithm.rule_check import check_rules
    from trainer.load_check import check_before_trials
    from trainer.policy.load import check_weights
    from trainer.problems.load import metric_names
    from trainer.rollouts.build import build_rewards
    from trainer.rollouts.prepared import load_data, prepare

    if device.on_gpu:
        check_fits(base, workers, device)
    for config in configs:
        check_rules(config.algorithm)
    for name in possible_values(base, searched, "model.name_or_path"):
        check_weights(base.model.model_copy(update={"name_or_path": name}))
    if any(key.startswith(("reward", "data")) for key in searched):
        load_data(base)
        build_rewards(base.reward).close()
        return
    prepared = prepare(base)
    prepared.close()
    check_before_trials(base, prepared.tokenizer, prepared.problems)
    measured = list(metric_names(prepared.sets))
    if base.evaluation.composite:
        measured.append("eval/composite")
    for metric in metrics:
        if metric not in measured:
            raise ConfigError(
                f"no evaluation measures {metric}",
                "objective",
                nearest(metric, measured),
                key="objective.metric",
                code="unmeasured-objective",
            )
