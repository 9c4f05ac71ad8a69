"""AR and Lopti [arXiv:2505.12929] for TRL's GRPOTrainer, and a callback that records a run for
sweeps. See docs/guides/trl.md.
"""

import copy
import functools
import inspect
import math
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from loptune.errors import ConfigError
from loptune.files import JsonLines
from trainer.algorithm.passes import low_probability_tokens
from trainer.algorithm.reweighting import reweight
from trainer.run_folder import RunFolder
from trainer.tracking.uploading import offset_after_step

_PASSES = 2
# loss types whose denominators do not depend on the loss mask
_SUMMED = ("dapo", "dr_grpo", "cispo", "luspo")
_STEP_COUNTS = (
    "max_steps",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "warmup_steps",
    "ref_model_sync_steps",
)


class LoptiGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with Advantage Reweighting (``ar_alpha``) and Lopti (``lopti_eta``); 0 turns
    either off.

    Lopti makes two passes over each buffered batch. All step counts in ``args`` are doubled, so a
    run samples, logs, evaluates and saves as often as without Lopti. The other parameters are
    GRPOTrainer's.

    Raises:
        ConfigError: a value outside [0, 1], or an argument with which Lopti's passes would share an
            optimizer step or change the denominator of the loss.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *positional: Any,
        ar_alpha: float = 0.0,
        lopti_eta: float = 0.0,
        **named: Any,
    ) -> None:
        for key, value in {"ar_alpha": ar_alpha, "lopti_eta": lopti_eta}.items():
            if not 0 <= value <= 1:
                raise ConfigError(
                    f"{key} is {value}",
                    key,
                    "choose a number from 0 to 1; 0 is off",
                    code="outside-0-to-1",
                )
        if lopti_eta > 0:
            args = _with_two_passes(GRPOConfig() if args is None else args)
        self.ar_alpha = ar_alpha
        self.lopti_eta = lopti_eta
        self._loss_inputs: dict[str, Any] | None = None  # inputs of the loss being computed
        super().__init__(model, reward_funcs, args, *positional, **named)

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        self._loss_inputs = dict(inputs)
        if self.lopti_eta > 0 and self.model.training:
            self._loss_inputs["tool_mask"] = self._tokens_of_pass(inputs)
        loss: Tensor = super()._compute_loss(model, self._loss_inputs)
        self._loss_inputs = None
        return loss

    def _tokens_of_pass(self, inputs: dict[str, Any]) -> Tensor:
        """Return the token mask of the current pass, [B, T]: low-probability tokens first, then the
        rest.
        """
        tokens = _policy_tokens(inputs)
        low = low_probability_tokens(inputs["old_per_token_logps"], tokens, self.lopti_eta)
        is_first = self._step // self.args.steps_per_generation % _PASSES == 0
        return low if is_first else tokens - low

    def _get_per_token_logps_and_entropies(self, *positional: Any, **named: Any) -> Any:
        """Call TRL's method. Inside a loss computation, replace the advantages with AR's advantages
        [B, T] before TRL reads them.

        TRL stores no old log-probabilities when they equal the current ones, so AR has to use the
        current ones computed here.
        """
        scores = super()._get_per_token_logps_and_entropies(*positional, **named)
        if self._loss_inputs is not None and self.ar_alpha > 0:
            inputs = self._loss_inputs
            old_logprobs = inputs.get("old_per_token_logps", scores[0].detach())
            advantages = inputs["advantages"].view(len(old_logprobs), -1)
            inputs["advantages"] = reweight(
                advantages, old_logprobs, self.ar_alpha
            ) * _policy_tokens(inputs)
        return scores


def _policy_tokens(inputs: dict[str, Any]) -> Tensor:
    """Return the mask of policy-generated completion tokens, [B, T]: 0 at padding and at tokens
    from tools and environments.
    """
    mask: Tensor = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    return mask


def _with_two_passes(args: GRPOConfig) -> GRPOConfig:
    """Return a copy of the arguments with doubled step counts.

    Raises:
        ConfigError: a pass's mask would change a loss denominator, or both passes would fall into
            one optimizer step.
    """
    sequence = "importance_sampling_level"
    incompatible = {
        "loss_type": (args.loss_type not in _SUMMED, f"use {', '.join(_SUMMED)}"),
        sequence: (getattr(args, sequence) != "token", "use token"),
        "top_entropy_quantile": (args.top_entropy_quantile < 1, "use 1.0"),
        "off_policy_mask_threshold": (args.off_policy_mask_threshold is not None, "use None"),
        "entropy_coef": (args.entropy_coef != 0, "use 0.0"),
        "use_adaptive_entropy": (args.use_adaptive_entropy, "use False"),
        "steps_per_generation": (
            args.steps_per_generation % args.gradient_accumulation_steps != 0,
            f"use a multiple of gradient_accumulation_steps, {args.gradient_accumulation_steps}",
        ),
    }
    for key, (is_incompatible, advice) in incompatible.items():
        if is_incompatible:
            what = (
                f"Lopti is not possible with {key}={getattr(args, key)}: each pass must take its "
                "own optimizer steps, and divide its loss by the number of all completion tokens"
            )
            raise ConfigError(
                what,
                f"GRPOConfig.{key}",
                f"{advice}, or set lopti_eta to 0",
                code="lopti-not-possible",
            )
    args = copy.copy(args)
    args.num_iterations *= _PASSES
    args.lopti_passes = _PASSES
    for key in _STEP_COUNTS:
        count = getattr(args, key)
        # a value below 1 is a fraction of all steps, or -1 for no limit
        if count is not None and count >= 1:
            setattr(args, key, count * _PASSES)
    return args


class RunRecorder(TrainerCallback):  # type: ignore[misc]
    """Callback for any GRPOTrainer: records evaluations and stops gracefully on SIGTERM.

    Writes to ``folder``: ``metrics.jsonl`` with lines such as ``{"step": 20, "eval/accuracy": 0.61,
    "eval/reward": ...}``, and ``correctness.jsonl`` with per-problem results in the format of
    `trainer.evaluation.correctness`. ``eval/accuracy`` and per-problem results need a reward
    function wrapped by `accuracy`. With Lopti, both passes count as one step.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files: list[JsonLines] = []
        # (problem, correct) of the current evaluation, on this rank
        self._scores: list[tuple[str, bool]] = []
        self._is_training = False
        self._stop_requested = False
        self._previous_handler: Any = None

    def accuracy(
        self, reward: Callable[..., Sequence[float | None]], correct_at: float = 1.0
    ) -> Callable[..., Any]:
        """Wrap a reward function for ``reward_funcs``. During evaluations, a reward of at least
        ``correct_at`` counts as correct.

        Problems are identified by the column ``problem_id``, or else by the prompt.
        """

        def record(values: Any, prompts: Sequence[Any], columns: dict[str, Any]) -> Any:
            if not self._is_training:
                problems = map(str, columns.get("problem_id", prompts))
                correct = [value is not None and value >= correct_at for value in values]
                self._scores.extend(zip(problems, correct, strict=True))
            return values

        @functools.wraps(reward)
        def recorded(prompts: Sequence[Any], **columns: Any) -> Any:
            return record(reward(prompts=prompts, **columns), prompts, columns)

        @functools.wraps(reward)
        async def recorded_later(prompts: Sequence[Any], **columns: Any) -> Any:
            values: Any = reward(prompts=prompts, **columns)
            return record(await values, prompts, columns)

        return recorded_later if inspect.iscoroutinefunction(reward) else recorded

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the files, drop lines that are newer than the checkpoint from which training
        resumes, and install the SIGTERM handler.
        """
        self._is_training = False
        if state.is_world_process_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            folder = RunFolder(self.folder)
            self._files = [JsonLines(folder.metrics), JsonLines(folder.correctness)]
            for file in self._files:
                file.cut(offset_after_step(file.path, _step(args, state) or -1))
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._request_stop)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the previous SIGTERM handler."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark that rewards are now computed for training."""
        self._is_training = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save and stop after the last update on the current batch of completions if any rank
        received SIGTERM.
        """
        self._is_training = False
        updates = (
            args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
        )
        if state.global_step % max(1, updates) == 0 and any(gather_object([self._stop_requested])):
            control.should_save = True
            control.should_training_stop = True

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **_: Any
    ) -> None:
        """Append the evaluation to both files."""
        scores: dict[str, list[bool]] = defaultdict(list)
        for problem, is_correct in gather_object(self._scores):
            scores[problem].append(is_correct)
        self._scores = []
        if not self._files:
            return
        step = _step(args, state)
        values = {
            name.replace("eval_", "eval/", 1): value
            for name, value in metrics.items()
            if name.startswith("eval_") and isinstance(value, int | float) and math.isfinite(value)
        }
        if scores:
            # the distributed sampler repeats some problems so that ranks have equal numbers
            completions = min(map(len, scores.values()))
            correct = [sum(scores[problem][:completions]) for problem in sorted(scores)]
            values["eval/accuracy"] = sum(correct) / (completions * len(correct))
            sets = {"eval": {"completions": completions, "correct": correct}}
            self._files[1].append({"step": step, "sets": sets})
        self._files[0].append({"step": step, **values})

    def _request_stop(self, *_: Any) -> None:
        self._stop_requested = True


def _step(args: Any, state: Any) -> int:
    """Return the step number with both Lopti passes counted as one."""
    return int(state.global_step) // int(getattr(args, "lopti_passes", 1))
