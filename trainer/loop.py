"""The training loop."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from trainer.algorithm.advantages import estimate_advantages
from trainer.algorithm.batching import UpdateBatch, build_batch, plan_update_batches, with_rewards
from trainer.algorithm.isolation import first_pass_reuses_forwards, isolation_passes
from trainer.algorithm.reweighting import reweight_advantages
from trainer.algorithm.scoring import attach_logprobs, score_batch
from trainer.algorithm.update import Updater, UpdateStatistics, learning_rate
from trainer.checkpoint import damaged_files, newest_checkpoint, prune_checkpoints, write_checkpoint
from trainer.config.schema import TrainConfig
from trainer.errors import DivergedError
from trainer.evaluation.correctness import correctness_record
from trainer.evaluation.evaluate import completion_rows, correct_by_problem, evaluate
from trainer.evaluation.history import best_evaluation, final_metrics
from trainer.metrics.bands import band_metrics, change_metrics
from trainer.metrics.step import (
    batch_metrics,
    rollout_metrics,
    time_metrics,
    update_metrics,
)
from trainer.metrics.stopwatch import Stopwatch
from trainer.parallel.models import load_models
from trainer.parallel.ranks import Parallel
from trainer.parallel.start import check_divisible, make_parallel
from trainer.policy.load import load_tokenizer
from trainer.policy.memory import Device, check_fits
from trainer.problems.epochs import training_steps
from trainer.problems.load import encode_prompt, load_problems
from trainer.problems.sampler import ProblemSampler
from trainer.progress import ProgressReport
from trainer.rollouts.build import build_engine, build_rewards
from trainer.rollouts.collect import collect_rollouts, derive_seed, group_requests, sampling_params
from trainer.rollouts.dynamic_sampling import sample_groups
from trainer.rollouts.engine import EngineRun
from trainer.rollouts.overlong import punish_overlong
from trainer.rollouts.pending import PendingSamples
from trainer.rollouts.reward_check import check_reward
from trainer.tracking.tracker import NullTracker, Tracker
from trainer.training_state import load_training_state, save_training_state
from trainer.types import RolloutGroup, RunContext, TrainBatch


class Trainer:
    """One training run: Algorithm 1 of arXiv:2505.12929 with GRPO or REINFORCE++ advantages.

    Raises:
        ConfigError, MissingError: model, data, memory or settings that cannot work, before the first step.
        DivergedError: from training, when loss, gradient norm or reward stops being a finite number.
        RewardError: scoring fails for the first problem, or, from training, too often.
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
        self.stopping = False  # what all ranks agreed on at the last step boundary
        self._stop_requested = False  # on this rank
        check_divisible(config, self.parallel.world_size)
        if self.parallel.device.type == "cuda":
            gpu = torch.cuda.get_device_properties(self.parallel.device).total_memory
            check_fits(config, self.parallel.world_size, Device(True, gpu))
        context.run_dir.mkdir(parents=True, exist_ok=True)  # here and never again: one that vanishes is an error

        self.progress.phase("loading the data")
        self.tokenizer = load_tokenizer(config.model)
        self.problems = load_problems(config.data.train, config.data, self.tokenizer)
        self.evaluation_sets = {
            name: load_problems(dataset, config.data, self.tokenizer)
            for name, dataset in config.evaluation.sets.items()
        }
        self.sampler = ProblemSampler(self.problems, config.seed, config.data.shuffle, config.data.drop_last)
        self.rewards = build_rewards(config.reward, config.reward.max_failure_rate)
        try:
            check_reward(self.rewards, self.problems[0], config.reward)
            self._load(config)
        except BaseException:
            self.rewards.close()
            raise

    def _load(self, config: TrainConfig) -> None:
        self.progress.phase(f"loading {config.model.name_or_path}")
        self.models = load_models(config, self.parallel)
        self.updater = Updater(
            self.models.policy,
            self.models.optimizer,
            config.algorithm,
            config.optim.max_grad_norm,
            self.parallel,
            config.rollout.max_new_tokens,
        )
        self.progress.phase("starting the rollout engine")
        engine_run = EngineRun(
            tuple(encode_prompt(self.tokenizer, self.problems[0])),
            self.context.run_dir / f"vllm-{self.parallel.rank}.log",
            self.context.is_one_of_many,
            lambda count: self.progress.completed(count),
        )
        self.engine = build_engine(
            config, self.models.causal_lm, self.tokenizer, self.models.whole_weights, engine_run
        )
        self.pending = PendingSamples(self.engine, self.parallel, config.rollout.uses_servers)
        self.engine.sync_weights(self.models.causal_lm)

    @property
    def total_steps(self) -> int:
        """Training steps of the whole run."""
        config = self.config
        return config.max_steps or training_steps(
            config.epochs, len(self.problems), config.rollout.prompts_per_step, config.data.drop_last
        )

    @property
    def done(self) -> bool:
        """Whether all steps are trained and the last one evaluated."""
        return self.step >= self.total_steps and self._evaluated(self.step)

    def request_stop(self) -> None:
        """Stop at the next step boundary; may be called at any time, on any rank."""
        self._stop_requested = True

    def train(self) -> None:
        """Train to the end, or to the next step boundary after `request_stop`."""
        self._agree_to_stop()
        while not self.done and not self.stopping:
            self.run_period()

    def run_period(self) -> dict[str, float]:
        """Train up to and including the next evaluation.

        Returns:
            Its ``eval/*`` metrics and ``step``; only ``step`` when a stop was requested before it.
        """
        while not self._evaluation_due() and not self._agree_to_stop():
            metrics = self.training_step()
            self.tracker.log(metrics, self.step)
            self.progress.step(self.step, metrics)
        metrics = self._evaluate() if self._evaluation_due() else {}
        if self.step > 0 and (self._agree_to_stop() or self._checkpoint_due()):
            self.save_checkpoint()
        if self.done:
            self.tracker.summarize(final_metrics(self.evaluations))
        return {**metrics, "step": float(self.step)}

    def training_step(self) -> dict[str, float]:
        """One step of Algorithm 1, counted by ``step``. Returns its metrics."""
        config, algorithm, parallel = self.config, self.config.algorithm, self.parallel
        stopwatch = Stopwatch()
        with stopwatch("step"):
            batch, plan, metrics = self._collect_and_score(stopwatch)
            batch = estimate_advantages(batch, algorithm, parallel.sum)
            batch = reweight_advantages(batch, algorithm)

            lr = learning_rate(config.optim, self.step, self.total_steps)
            self.updater.set_learning_rate(lr)
            statistics = UpdateStatistics.of(batch)
            split_seed = derive_seed(config.seed, "isolation", self.step, parallel.rank)
            split_generator = torch.Generator().manual_seed(split_seed)
            self.progress.phase("updating", announce=False)
            with stopwatch("update"):
                for _ in range(algorithm.update_epochs):
                    for token_mask in isolation_passes(batch, algorithm, split_generator, parallel.gather):
                        self.updater.run_pass(batch, token_mask, plan, statistics, self.step + 1)
            if statistics.first is not None:
                batch = statistics.first.complete(batch)
            with stopwatch("diagnostics"):
                metrics |= self._diagnostics(batch, statistics, plan)
            with stopwatch("rollout"):
                self.pending.wait()
            with stopwatch("sync"):
                self.engine.sync_weights(self.models.causal_lm)
                self.engine.wake()
        self.step += 1
        return (
            metrics
            | self.engine.metrics()
            | batch_metrics(batch, algorithm, parallel, statistics.first)
            | update_metrics(statistics, lr, parallel)
            | time_metrics(stopwatch, batch, parallel)
        )

    def _collect_and_score(self, stopwatch: Stopwatch) -> tuple[TrainBatch, list[UpdateBatch], dict[str, float]]:
        """`collect_groups` and `score_groups`: log-probabilities while the rewards are still computed.

        Dynamic sampling has to know the rewards first.
        """
        if self.config.rollout.dynamic_sampling:
            groups, metrics = self.collect_groups(stopwatch)
            return *self.score_groups(groups, stopwatch, keep_forwards=True), metrics
        found: list[tuple[TrainBatch, list[UpdateBatch]]] = []

        def meanwhile(unscored: list[RolloutGroup]) -> None:
            self._sample_ahead(stopwatch)
            found.append(self.score_groups(unscored, stopwatch, keep_forwards=True))

        groups, metrics = self.collect_groups(stopwatch, meanwhile)
        [(batch, plan)] = found
        return with_rewards(batch, groups), plan, metrics

    def _sample_ahead(self, stopwatch: Stopwatch) -> None:
        """Begin the next step's completions, by the weights before this step's update [rollout.lag]."""
        rollout = self.config.rollout
        if rollout.lag == 0 or self.step + 1 >= self.total_steps:
            return
        problems = self.sampler.peek(rollout.prompts_per_step)
        requests = group_requests(self.config, self.step + 1, problems, self.parallel)
        prompts = [encode_prompt(self.tokenizer, request.problem) for request in requests]
        params = sampling_params(rollout, self.tokenizer)
        self.progress.phase("sampling", len(requests) * rollout.group_size, announce=False)
        with stopwatch("rollout"):
            self.pending.begin(prompts, [request.seeds for request in requests], params)

    def collect_groups(
        self, stopwatch: Stopwatch, meanwhile: Callable[[list[RolloutGroup]], None] | None = None
    ) -> tuple[Sequence[RolloutGroup], dict[str, float]]:
        """The rank's share of the step's groups, and the metrics of all that was sampled on all ranks.

        ``meanwhile`` is what `collect_rollouts` does while they are scored, without dynamic sampling.
        """
        config, parallel = self.config, self.parallel
        params = sampling_params(config.rollout, self.tokenizer)

        def collect(first: int, count: int) -> list[RolloutGroup]:
            requests = group_requests(config, self.step, self.sampler.next(count), parallel, first)
            self.progress.phase("sampling", len(requests) * config.rollout.group_size, announce=False)
            groups = collect_rollouts(
                self.pending, self.tokenizer, requests, params, self.rewards, stopwatch, meanwhile
            )
            return punish_overlong(groups, params.max_new_tokens, config.reward)

        rollout = config.rollout
        rounds = rollout.max_sampling_rounds if rollout.dynamic_sampling else 1
        sample = sample_groups(collect, rollout.prompts_per_step, rounds, parallel)
        metrics = rollout_metrics(sample.sampled, parallel) | {"rollout/dropped_groups": float(sample.dropped)}
        if not math.isfinite(metrics["rollout/reward"]):
            raise DivergedError(self.step + 1, "reward", metrics["rollout/reward"])
        return sample.groups, metrics

    def score_groups(
        self, groups: Sequence[RolloutGroup], stopwatch: Stopwatch, keep_forwards: bool = False
    ) -> tuple[TrainBatch, list[UpdateBatch]]:
        """The batch of some groups with log-probabilities, but without advantages, and its update batches.

        Args:
            groups: of this rank.
            stopwatch: takes the time of the phases.
            keep_forwards: for the first update batch, which the policy must then be updated on.
        """
        optim = self.config.optim
        self.engine.sleep()
        batch = build_batch(groups, self.tokenizer.pad_token_id, self.parallel.device)
        # A wrapped policy may not run other forwards between one with gradient and its backward, and dropout is
        # for updates alone.
        recomputes = optim.old_logprobs == "recompute"
        keep_forwards = (
            keep_forwards
            and recomputes
            and not (self.models.is_wrapped or self.config.model.lora.dropout)
            and first_pass_reuses_forwards(batch, self.config.algorithm)
        )
        plan = plan_update_batches(
            batch,
            optim.update_batch_size // self.parallel.world_size,
            optim.tokens_per_microbatch,
            self.parallel.gather,
            self.models.packs_rows,
            optim.kept_forward_tokens if keep_forwards else 0,
            self.models.row_cost,
        )
        with stopwatch("logprobs"):
            policy = self.models.policy if recomputes else None
            return attach_logprobs(batch, policy, self.models.reference, plan), plan

    def save_checkpoint(self) -> Path:
        """Write ``checkpoints/step-N`` of the run folder; nothing where it is already there and intact."""
        root, parallel = self.context.run_dir / "checkpoints", self.parallel
        folder = root / f"step-{self.step}"
        is_there = parallel.is_main and folder.is_dir() and not damaged_files(folder)
        if any(parallel.gather([is_there], after_files=True)):
            return folder
        state = {
            "step": self.step,
            "evaluations": self.evaluations,
            "sampler": self.sampler.state_dict(),
        }

        def write_files(partial: Path) -> None:
            models = self.models
            save_training_state(partial, models.causal_lm, self.tokenizer, models.optimizer, state, parallel)
            self.pending.save(partial)

        write_checkpoint(root, self.step, write_files, parallel)
        best = best_evaluation(self.evaluations) if self.config.checkpoint.keep_best else None
        if parallel.is_main:
            prune_checkpoints(root, self.config.checkpoint.keep_last, {best[0]} if best else set(), self.step)
        return folder

    def resume(self) -> int:
        """Continue from the newest intact checkpoint of the run folder.

        Returns:
            The step continued from; 0 where there has been no checkpoint.

        Raises:
            ConfigError: the run has ended and only weights were kept of its checkpoints.
            StorageError: there are checkpoints and none is intact.
        """
        root, parallel = self.context.run_dir / "checkpoints", self.parallel
        newest = newest_checkpoint(root) if parallel.is_main else None
        name = parallel.gather([newest.name if newest else None], after_files=True)[0]
        if name is not None:
            state = load_training_state(root / name, self.models.causal_lm, self.models.optimizer, parallel)
            self.step = state["step"]
            self.evaluations = [(step, accuracy) for step, accuracy in state["evaluations"]]
            self.sampler.load_state_dict(state["sampler"])
            if self.config.rollout.lag:
                self.pending.load(root / name)
            self.engine.sync_weights(self.models.causal_lm)
        # Without a checkpoint the evaluation before the first step is done again, too.
        self.tracker.rewind(self.step if name is not None else -1)
        return self.step

    def close(self, status: str = "FINISHED") -> bool:
        """End scoring processes, engine and tracking; False when MLflow does not have the whole run."""
        self.rewards.close()
        self.engine.close()
        self.pending.close()
        self.parallel.close()
        return self.tracker.close(status)

    def _diagnostics(
        self, batch: TrainBatch, statistics: UpdateStatistics, plan: Sequence[UpdateBatch]
    ) -> dict[str, float]:
        config, algorithm = self.config.diagnostics, self.config.algorithm
        metrics: dict[str, float] = {}
        if config.bands:
            metrics |= band_metrics(batch, statistics, algorithm, self.parallel)
        if config.every_steps and (self.step + 1) % config.every_steps == 0:
            new = score_batch(self.models.policy, batch, plan, with_entropy=False)
            metrics |= change_metrics(batch, new.logprobs, self.parallel)
        return metrics

    def _evaluate(self) -> dict[str, float]:
        per_problem = self.config.evaluation.completions_per_problem
        problems = sum(map(len, self.evaluation_sets.values())) // self.parallel.world_size
        self.progress.phase(f"evaluating at step {self.step}", problems * per_problem)
        stopwatch = Stopwatch()
        with stopwatch("evaluation"):
            result = evaluate(
                self.engine, self.tokenizer, self.rewards, self.evaluation_sets, self.config, self.parallel
            )
        metrics = result.metrics | {"time/evaluation": stopwatch.seconds["evaluation"]}
        self.evaluations.append((self.step, metrics["eval/accuracy"]))
        self.tracker.log(metrics, self.step)
        counts = {name: correct_by_problem(answers) for name, answers in result.rollouts.items()}
        self.tracker.log_correctness(correctness_record(counts), self.step)
        rows = completion_rows(result.rollouts, self.config.tracking.completions)
        if rows:
            self.tracker.log_completions(rows, self.step)
        self.progress.evaluation(self.step, metrics)
        return metrics

    def _agree_to_stop(self) -> bool:
        """Whether a stop was requested on any rank: one that stopped alone would leave the others waiting."""
        self.stopping = self.parallel.any(self._stop_requested)
        return self.stopping

    def _evaluation_due(self) -> bool:
        if self.step == 0:
            due = self.config.evaluation.at_start
        else:
            due = self.step % self.config.evaluation.every_steps == 0 or self.step >= self.total_steps
        return due and not self._evaluated(self.step)

    def _evaluated(self, step: int) -> bool:
        return any(evaluated == step for evaluated, _ in self.evaluations)

    def _checkpoint_due(self) -> bool:
        return self.step % self.config.checkpoint.every_steps == 0 or self.step >= self.total_steps
