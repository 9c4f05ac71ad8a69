"""A small run on a random model, for the checks at load."""

from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import PreTrainedModel

from tests.conftest import random_model
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.load_check import check_at_load
from trainer.load_check.model import Paths, bound_of
from trainer.parallel.models import Models, load_models
from trainer.parallel.ranks import Parallel
from trainer.parallel.strategy import make_parallel
from trainer.rollouts.transformers import TransformersEngine
from trainer.types import Problem

TOKENIZER = byte_tokenizer()
PROBLEMS = [
    Problem(str(number), text, "", "4", "test")
    for number, text in enumerate(["1+3=", "What is 2 + 2?", "Add three and one, then write it: "])
]


def saved(folder: Path, model: PreTrainedModel | None = None) -> Path:
    """Save a random model (default: Qwen2 with peaked distributions) with a byte tokenizer."""
    model = model or random_model(vocab_size=258)
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


class Run:
    """A loaded run whose parts a test may break before it is checked."""

    def __init__(self, model: Path, **overrides: object) -> None:
        base = {
            "model.name_or_path": str(model),
            "rollout.temperature": 0.8,
            "rollout.max_new_tokens": 12,
            "parallel.device": "cpu",
        }
        self.config = apply_overrides(TrainConfig(), base | overrides)
        self.parallel: Parallel = make_parallel(self.config)
        self.models: Models = load_models(self.config, self.parallel)
        self.tokenizer = TOKENIZER
        self.problems = PROBLEMS
        self.engine = TransformersEngine(
            self.models.causal_lm, pad_token_id=0, full_weights=self.models.full_weights
        )

    @property
    def paths(self) -> Paths:
        """The run's paths, as the trainer hands them to the check."""
        return Paths(
            policy=self.models.policy,
            engine=self.engine,
            parallel=self.parallel,
            bound=bound_of(self.models.policy),
            full_weights=self.models.full_weights,
        )

    def check(self, passed_checks: Path | None = None) -> None:
        """Run the whole check, or none if one is recorded in ``passed_checks``."""
        with TemporaryDirectory() as folder:
            check_at_load(
                self.config,
                self.paths,
                self.tokenizer,
                self.problems,
                Path(folder) / "check",
                passed_checks,
            )
