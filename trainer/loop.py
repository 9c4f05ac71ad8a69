"""The training loop."""

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from loptune.errors import check_finite
from loptune.files import format_bytes
from loptune.progress import ProgressReport
from loptune.score import best_evaluation, final_metrics
from rewards.sandbox import MAX_FAILURE_RATE
from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import with_rewards
from trainer.algorithm.passes import isolation_passes, select_loss_tokens
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.rule_check import check_rules
from trainer.algorithm.rule_state import initial_states, next_states, restored_states, state_metrics
from trainer.algorithm.scoring import Scorer, check_logprobs_finite
from trainer.algorithm.update import Updater, UpdateStatistics, learning_rate
from trainer.attempt import Attempt
from trainer.checkpoint.on_disk import (
    newest_checkpoint,
    prune_checkpoints,
    steps_on_disk,
    write_checkpoint,
)
from trainer.checkpoint.run_state import RunState
from trainer.checkpoint.state import load_training_state, stage_training_state
from trainer.checkpoint.writer import CheckpointWriter
from trainer.config.schema import TrainConfig
from trainer.evaluation.correctness import correctness_record
from trainer.evaluation.evaluate import completion_rows, correct_by_problem, evaluate
from trainer.load_check import check_at_load
from trainer.load_check.checkpoint import FOLDER
from trainer.load_check.model import Paths, bound_of
from trainer.metrics.bands import band_metrics
from trainer.metrics.step import (
    Stopwatch,
    batch_metrics,
    memory_metrics,
    read_metrics,
    rollout_metrics,
    time_metrics,
    update_metrics,
)
from trainer.parallel.device import describe_device, memory_in_use
from trainer.parallel.models import load_models
from trainer.parallel.ranks import Parallel
from trainer.parallel.strategy import check_divisible, make_parallel
from trainer.planning.memory import check_fits
from trainer.problems.load import encode_prompt
from trainer.problems.sampler import ProblemSampler, training_steps
from trainer.rollouts.build import build_engine
from trainer.rollouts.collect import RolloutSampler, derive_seed
from trainer.rollouts.engine import EngineContext
from trainer.rollouts.prepared import prepare
from trainer.rules.interface import StepSummary
from trainer.run_folder import RunFolder
from trainer.tracking.tracker import NullTracker, Tracker
from trainer.types import Rollout, RunContext, TrainBatch, all_rollouts


def total_steps(config: TrainConfig, problems: int) -> int:
    """Return the number of training steps of a run with this number of training problems."""
    return config.max_steps or training_steps(
        config.epochs, problems, config.rollout.prompts_per_step, config.data.drop_last
    )


class Trainer:
    """One training run: Algorithm 1 of arXiv:2505.12929 with the configured update rule.

    Args:
        config: configuration of the run.
        context: folders and name of the run.
        tracker: record of the metrics; None records nothing.
        progress: receiver of progress events; None ignores them.
        parallel: this process's rank; None creates it from the environment, see `make_parallel`.

    Raises:
        ConfigError, MissingError: invalid model, data, memory or settings, before the first step.
        DivergedError: during training, if a loss, gradient norm, reward or log-probability is not
            finite.
        RewardError: scoring fails on the first problem, or for too many completions during
            training.
        EngineError: the rollout engine does not start, or fails.
        StorageError: a checkpoint or the record cannot be written.
    """

    def __init__(
        self,
        config: TrainConfig,
        context: RunContext,
        tracker: Tracker | NullTracker | None = None,
        progress: ProgressReport | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        self.config = config
        self.context = context
        self.tracker = tracker or NullTracker()
        self.progress = progress or ProgressReport()
        self.parallel = parallel or make_parallel(config)
        self.step = 0
        self.evaluations: list[tuple[int, float]] = []
        self.rule_states = initial_states(config.algorithm)
        self.zero_variance_steps = 0  # steps in which every group had zero reward variance
        self.stopped = False  # stop decision shared by all ranks at the last step boundary
        self._stop_requested = False  # whether this rank requested a stop
        self._checkpoint = CheckpointWriter()
        self._saved_step = -1  # step of the last checkpoint that was started or resumed from
        check_divisible(config, self.parallel.world_size)
        check_rules(config.algorithm)
        device = describe_device(self.parallel.device)
        self._estimate = check_fits(
            config, self.parallel.world_size, device, quiet=not self.parallel.is_main
        )
        self._peak_shown = False
        # The run folder is created only here: if it disappears later, that is an error. A trial's
        # folder already exists.
        context.run_dir.mkdir(parents=context.attempt == 0, exist_ok=True)

        self.progress.phase("loading the data")
        prepared = prepare(config, max_failure_rate=MAX_FAILURE_RATE)
        self.tokenizer = prepared.tokenizer
        # a separate copy for saving, because a tokenizer is not thread-safe
        self._checkpoint_tokenizer = copy.deepcopy(self.tokenizer)
        self.problems = prepared.problems
        self.evaluation_sets = prepared.sets
        self.rewards = prepared.rewards
        self._inputs = prepared
        try:
            self._load(config)
        except BaseException:
            prepared.close()
            raise

    def _load(self, config: TrainConfig) -> None:
        self.progress.phase(f"loading {config.model.name_or_path}")
        self.models = load_models(config, self.parallel)
        self.scorer = Scorer(config.optim, self.models, self.tokenizer.pad_token_id, self.parallel)
        self.updater = Updater(
            self.models.policy,
            self.models.optimizer,
            config.algorithm,
            config.optim.max_grad_norm,
            self.parallel,
            config.rollout.max_new_tokens,
            self.models.cached_forward,
        )
        self.progress.phase("starting the rollout engine")
        engine_run = EngineContext(
            tuple(encode_prompt(self.tokenizer, self.problems[0])),
            self.context.run_dir / f"vllm-{self.parallel.rank}.log",
            self.context.shares_process,
            lambda count: self.progress.completed(count),
        )
        full_weights = partial(self.parallel.full_parameters, self.models.policy)
        self.engine = build_engine(
            config, self.models.causal_lm, self.tokenizer, full_weights, engine_run
        )
        self.engine.sync_weights(self.models.causal_lm)
        self.progress.phase("checking model and checkpoint")
        paths = Paths(
            policy=self.models.policy,
            engine=self.engine,
            parallel=self.parallel,
            bound=bound_of(self.models.policy),
            full_weights=self.models.full_weights,
        )
        check_at_load(
            config,
            paths,
            self._checkpoint_tokenizer,
            self.problems,
            self.context.run_dir / FOLDER,
            self.context.passed_checks,
        )
        sampler = ProblemSampler(
            self.problems, config.seed, config.data.shuffle, config.data.drop_last
        )
        self.source = RolloutSampler(
            config, sampler, self.tokenizer, self.engine, self.rewards, self.parallel, self.progress
        )

    @property
    def total_steps(self) -> int:
        """Total number of training steps."""
        return total_steps(self.config, len(self.problems))

    @property
    def done(self) -> bool:
        """Whether training has reached the last step and evaluated it."""
        return self.step >= self.total_steps and self._evaluated(self.step)

    @property
    def history(self) -> Mapping[int, float]:
        """The objective by training step, as recorded; empty on ranks without a record."""
        return self.tracker.history

    def request_stop(self) -> None:
        """Request a stop at the next step boundary; may be called from a signal handler, on any
        rank.
        """
        self._stop_requested = True

    def train(self) -> None:
        """Train to the end, or to the next step boundary after `request_stop`."""
        self._sync_stop_request()
        while not self.done and not self.stopped:
            self.train_until_evaluation()

    def train_until_evaluation(self) -> dict[str, float]:
        """Train until the next evaluation and return its ``eval/*`` metrics and ``step``.

        If a stop is requested before it, only ``step`` is returned.
        """
        while not self._evaluation_due() and not self._sync_stop_request():
            metrics = self.training_step()
            self.tracker.log(metrics, self.step)
            self.progress.step(self.step, metrics)
            self._show_peak()
            self._checkpoint.raise_if_failed()
        metrics = self._evaluate() if self._evaluation_due() else {}
        if self.step > 0 and (self._sync_stop_request() or self._checkpoint_due()):
            self._start_checkpoint()
        if self.done or self.stopped:
            self._checkpoint.wait()
        if self.done:
            zero_variance = {
                "final/zero_variance_steps": self.zero_variance_steps / max(1, self.step)
            }
            final = final_metrics(self.evaluations, self.context.window)
            self.tracker.summarize(final | zero_variance)
        return {**metrics, "step": float(self.step)}

    def training_step(self) -> dict[str, float]:
        """Run one training step of Algorithm 1 and return its metrics."""
        config = self.config
        algorithm = self.config.algorithm
        parallel = self.parallel
        stopwatch = Stopwatch()
        step = self.step + 1
        split_seed = derive_seed(config.seed, "isolation", self.step, parallel.rank)
        split_generator = torch.Generator().manual_seed(split_seed)
        with stopwatch("step"):
            sample = self.source.next_groups(self.step, stopwatch)
            with stopwatch("logprobs"):
                batch, plan = self.scorer.score(sample.groups)
                check_logprobs_finite(batch, step, parallel)
            with stopwatch("reward"):
                scored = sample.scores.result()
            metrics = read_metrics([rollout_metrics(scored, bool(config.rollout.stop))], parallel)
            check_finite(step, "reward", metrics["rollout/reward"])
            if self._is_evaluated_after(step):
                self._record_completions({"train": all_rollouts(scored.groups)}, step)
            batch = with_rewards(batch, scored.groups, config.reward.functions)
            batch = self._with_rule_inputs(batch, step)
            batch = estimate_advantages(batch, algorithm, parallel.sum)
            batch = select_loss_tokens(batch, algorithm, split_generator, parallel.gather)
            batch = reweight_advantages(batch, algorithm)

            lr = learning_rate(config.optim, self.step, self.total_steps)
            self.updater.set_learning_rate(lr)
            statistics = UpdateStatistics.of(batch)
            self.progress.phase("updating", announce=False)
            with stopwatch("update"):
                for _ in range(algorithm.update_epochs):
                    for token_mask in isolation_passes(
                        batch, algorithm, split_generator, parallel.gather
                    ):
                        self.updater.run_pass(batch, token_mask, plan, statistics, step)
            if self.models.cached_forward is not None:
                self.models.cached_forward.free()
            with stopwatch("diagnostics"):
                metrics |= self._diagnostics(batch, statistics, lr)
            self.source.sync_weights(self.models.causal_lm, stopwatch)
        self.step = step
        self.zero_variance_steps += metrics["rollout/zero_variance_groups"] == 1
        check_finite(step, "loss", metrics["policy/loss"])
        self.rule_states = next_states(
            algorithm, self.rule_states, self._summary(metrics), parallel.gather
        )
        metrics |= state_metrics(self.rule_states)
        return metrics | self.engine.metrics() | time_metrics(stopwatch, batch, parallel)

    def _with_rule_inputs(self, batch: TrainBatch, step: int) -> TrainBatch:
        """Return the batch with the step and the states of the rules, which rules may use."""
        return replace(
            batch,
            step=step,
            total_steps=self.total_steps,
            advantage_state=self.rule_states["advantage"],
            loss_state=self.rule_states["loss"],
        )

    def _summary(self, metrics: Mapping[str, float]) -> StepSummary:
        """Return the metrics of the last step that a rule may use to update its state."""
        return StepSummary(
            step=self.step,
            total_steps=self.total_steps,
            reward=metrics["rollout/reward"],
            accuracy=metrics["rollout/accuracy"],
            entropy=metrics.get("policy/entropy"),
            clip_fraction=metrics["policy/clip_fraction"],
            approx_kl=metrics["policy/approx_kl"],
        )

    def save_checkpoint(self) -> Path:
        """Write ``checkpoints/step-N`` unless it was already written, wait until it is on disk, and
        return its folder.

        Raises:
            StorageError: the checkpoint could not be written.
        """
        self._start_checkpoint()
        self._checkpoint.wait()
        return RunFolder(self.context.run_dir).checkpoint(self.step)

    def _start_checkpoint(self) -> None:
        """Wait for the previous checkpoint, copy the state to host memory, and write it in the
        background.
        """
        if self._saved_step == self.step:
            return
        self._checkpoint.wait()
        root = RunFolder(self.context.run_dir).checkpoints
        parallel = self.parallel
        step = self.step
        models = self.models
        state = RunState(
            step=step,
            evaluations=[*self.evaluations],
            zero_variance_steps=self.zero_variance_steps,
            sampler=self.source.sampler.state_dict(),
            rule_states=self.rule_states,
        )
        write_files = stage_training_state(
            models.causal_lm, self._checkpoint_tokenizer, models.optimizer, state, parallel
        )
        settings = self.config.checkpoint
        attempt = Attempt(root.parent, self.context.attempt)

        def write() -> None:
            write_checkpoint(root, step, write_files, parallel, attempt)
            if parallel.is_main:
                # only steps with a checkpoint: evaluations may be more frequent
                best = best_evaluation(state.evaluations, steps_on_disk(root))
                kept = set()
                if best is not None and settings.keep_best:
                    kept.add(best[0])
                prune_checkpoints(root, settings.keep_last, kept)

        self._checkpoint.begin(write)
        self._saved_step = step

    def resume(self) -> int:
        """Resume from the newest intact checkpoint, if any, and return its step.

        Raises:
            ConfigError: the run has finished and only its weights were kept, or the number of
                training problems has changed.
            StorageError: all checkpoints are damaged, or the newest one does not fit the model.
        """
        root = RunFolder(self.context.run_dir).checkpoints
        parallel = self.parallel
        newest = newest_checkpoint(root) if parallel.is_main else None
        name = parallel.gather([newest.name if newest else None], after_files=True)[0]
        if name is not None:
            state = load_training_state(
                root / name, self.models.causal_lm, self.models.optimizer, parallel
            )
            self.step = self._saved_step = state.step
            self.evaluations = state.evaluations
            self.zero_variance_steps = state.zero_variance_steps
            self.rule_states = restored_states(self.config.algorithm, state.rule_states)
            self.source.sampler.load_state_dict(state.sampler)
            self.engine.sync_weights(self.models.causal_lm)
        # Without a checkpoint, the evaluation at step 0 is repeated, too.
        self.tracker.rewind(self.step if name is not None else -1)
        return self.step

    def close(self, status: str = "FINISHED") -> bool:
        """Shut down checkpoint writer, scoring processes, engine and tracker, which records the
        ``status``: FINISHED, FAILED or KILLED. Return False if part of the run is missing from
        MLflow.
        """
        try:
            with ExitStack() as parts:  # closed in reverse order, even if closing one fails
                parts.callback(self.parallel.close)
                parts.callback(self._inputs.close)
                parts.callback(self.source.close)
                parts.callback(self._checkpoint.close)
        finally:  # otherwise the run would still be RUNNING in MLflow
            recorded = self.tracker.close(status)
        return recorded

    def _diagnostics(
        self, batch: TrainBatch, statistics: UpdateStatistics, lr: float
    ) -> dict[str, float]:
        algorithm = self.config.algorithm
        device = self.parallel.device
        metrics = [
            batch_metrics(batch, algorithm),
            update_metrics(statistics, lr),
            band_metrics(batch, statistics, algorithm),
        ]
        if device.type == "cuda":
            metrics.append(memory_metrics(device))
        return read_metrics(metrics, self.parallel)

    def _show_peak(self) -> None:
        """Report the measured memory of the first step with the estimate."""
        if self._peak_shown or self._estimate is None:
            return
        self._peak_shown = True
        peak = format_bytes(memory_in_use(self.parallel.device))
        estimate = format_bytes(max(self._estimate.training, self._estimate.sampling))
        self.progress.note(
            f"memory in the first step: {peak} measured; estimated maximum: {estimate}"
        )

    def _evaluate(self) -> dict[str, float]:
        per_problem = self.config.evaluation.completions_per_problem
        problems = sum(map(len, self.evaluation_sets.values())) // self.parallel.world_size
        self.progress.phase(
            f"evaluating at step {self.step}", problems * per_problem, announce=False
        )
        stopwatch = Stopwatch()
        with stopwatch("evaluation"):
            result = evaluate(
                self.engine,
                self.tokenizer,
                self._inputs.set_rewards,
                self.evaluation_sets,
                self.config,
                self.parallel,
            )
        metrics = result.metrics | {"time/evaluation": stopwatch.seconds["evaluation"]}
        self.evaluations.append((self.step, metrics["eval/accuracy"]))
        self.tracker.log(metrics, self.step)
        counts = {name: correct_by_problem(answers) for name, answers in result.rollouts.items()}
        self.tracker.log_correctness(correctness_record(counts), self.step)
        self._record_completions(result.rollouts, self.step)
        self.progress.evaluation(self.step, metrics)
        return metrics

    def _record_completions(self, rollouts: dict[str, list[Rollout]], step: int) -> None:
        rows = completion_rows(rollouts, self.config.tracking.completions)
        if rows:
            self.tracker.log_completions(rows, step)

    def _sync_stop_request(self) -> bool:
        """Return whether any rank or `trainer stop` has requested a stop. All ranks get the same
        answer, so they stop together.
        """
        by_file = self.parallel.is_main and RunFolder(self.context.run_dir).stop.exists()
        self.stopped = self.parallel.any(self._stop_requested or by_file)
        return self.stopped

    def _evaluation_due(self) -> bool:
        return self._is_evaluated_after(self.step) and not self._evaluated(self.step)

    def _is_evaluated_after(self, step: int) -> bool:
        if step == 0:
            return self.config.evaluation.at_start
        return step % self.config.evaluation.every_steps == 0 or step >= self.total_steps

    def _evaluated(self, step: int) -> bool:
        return any(evaluated == step for evaluated, _ in self.evaluations)

    def _checkpoint_due(self) -> bool:
        return self.step % self.config.checkpoint.every_steps == 0 or self.step >= self.total_steps
