"""What a sweep needs besides CPUs and GPUs, checked once before Ray starts."""

from collections.abc import Iterator

from sweep.space.spec import SweepSpec
from trainer.config.schema import ModelConfig


def check_training(spec: SweepSpec) -> None:
    """Read the model folder, the tokenizer and every dataset as a trial will, and score one row of them.

    The embedded policy is warm-started where it is used.

    Raises:
        MissingError, ConfigError, RewardError: what a trial would stumble over.
    """
    # torch and transformers take seconds to import, and a sweep on missing GPUs is refused before.
    from trainer.policy.load import check_weights, load_tokenizer
    from trainer.problems.load import load_problems
    from trainer.rollouts.build import build_rewards
    from trainer.rollouts.reward_check import check_reward

    for model in _models(spec):
        check_weights(model)
    tokenizer = load_tokenizer(spec.base.model)
    problems = load_problems(spec.base.data.train, spec.base.data, tokenizer)
    if not any(key.startswith(("reward", "data")) for key in spec.parameters):  # then each trial finds out
        with build_rewards(spec.base.reward) as rewards:
            check_reward(rewards, problems[0], spec.base.reward)
    for dataset in spec.base.evaluation.sets.values():
        load_problems(dataset, spec.base.data, tokenizer)


def _models(spec: SweepSpec) -> Iterator[ModelConfig]:
    searched = spec.parameters.get("model.name_or_path")
    names = (searched.options or []) if searched else [spec.base.model.name_or_path]
    for name in names:
        yield spec.base.model.model_copy(update={"name_or_path": name})
