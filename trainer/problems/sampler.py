"""Problem order and step count."""

import math
import random
from collections.abc import Sequence

from loptune.errors import ConfigError
from rewards.errors import CodedValueError
from trainer.types import Problem


class ProblemSampler:
    """Iterator over the problems in epochs. The order depends only on (seed, epoch), and is the
    order of the data unless ``shuffle`` is set.

    Raises:
        ValueError: no problems.
    """

    def __init__(
        self, problems: Sequence[Problem], seed: int, shuffle: bool, drop_last: bool = False
    ) -> None:
        if not problems:
            raise CodedValueError("no problems to sample from", code="no-problems")
        self._drop_last = drop_last
        self._problems = list(problems)
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = 0
        self._position = 0
        self._order = self._epoch_order()

    def next(self, count: int) -> list[Problem]:
        """Return the next ``count`` problems; continues into the next epoch.

        With ``drop_last`` an incomplete remainder of an epoch is skipped.
        """
        if self._drop_last and self._position + count > len(self._order):
            self._position = len(self._order)
        taken: list[Problem] = []
        while len(taken) < count:
            if self._position == len(self._order):
                self._epoch += 1
                self._position = 0
                self._order = self._epoch_order()
            end = min(len(self._order), self._position + count - len(taken))
            taken += [self._problems[index] for index in self._order[self._position : end]]
            self._position = end
        return taken

    def state_dict(self) -> dict[str, int]:
        """Return the position, as JSON values."""
        return {"epoch": self._epoch, "position": self._position, "problems": len(self._problems)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore a saved position.

        Raises:
            ConfigError: the number of problems has changed.
        """
        if state["problems"] != len(self._problems):
            raise ConfigError(
                f"the checkpoint was written with {state['problems']} problems, but the data "
                f"now has {len(self._problems)}",
                "data.train",
                "resume with the data that the run started with",
                key="data.train",
                code="problems-changed",
            )
        self._epoch = state["epoch"]
        self._position = state["position"]
        self._order = self._epoch_order()

    def _epoch_order(self) -> list[int]:
        order = list(range(len(self._problems)))
        if self._shuffle:
            random.Random(f"{self._seed} {self._epoch}").shuffle(order)
        return order


def training_steps(epochs: float, problems: int, prompts_per_step: int, drop_last: bool) -> int:
    """Return the number of training steps in ``epochs``.

    With ``drop_last`` every epoch ends at its last full step; otherwise a step may span two epochs.

    Raises:
        ConfigError: with ``drop_last``, there are fewer problems than prompts per step.
    """
    if not drop_last:
        return math.ceil(epochs * problems / prompts_per_step)
    if problems < prompts_per_step:
        raise ConfigError(
            f"{problems} problems are fewer than one step of {prompts_per_step} prompts, and "
            "drop_last drops incomplete steps",
            "data.drop_last",
            "set data.drop_last=false or lower rollout.prompts_per_step",
            key="data.drop_last",
            code="step-not-filled",
        )
    return math.ceil(epochs * (problems // prompts_per_step))
