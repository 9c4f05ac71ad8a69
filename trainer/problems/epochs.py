"""How many training steps the problems make."""

import math

from trainer.errors import ConfigError


def training_steps(epochs: float, problems: int, prompts_per_step: int, drop_last: bool) -> int:
    """Steps of so many passes over the problems.

    Args:
        epochs: passes.
        problems: of one pass.
        prompts_per_step: problems of a step.
        drop_last: every pass ends with its last full step; otherwise a step may hold problems of two passes.

    Raises:
        ConfigError: no step is ever full.
    """
    if not drop_last:
        return math.ceil(epochs * problems / prompts_per_step)
    if problems < prompts_per_step:
        raise ConfigError(
            f"{problems} problems do not fill one step of {prompts_per_step}, and incomplete ones are dropped",
            "data.drop_last",
            "set data.drop_last=false or lower rollout.prompts_per_step",
        )
    return math.ceil(epochs * (problems // prompts_per_step))
