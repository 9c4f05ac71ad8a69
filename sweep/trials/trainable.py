"""One trial of a sweep as Ray Tune sees it: a worker group inside the trial's own placement group.

Ray Train's trainers start workers outside the resources that Tune counts. Here the group is
reserved as one unit, counts toward concurrency, and is released when the trial ends.
"""

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.util import get_current_placement_group
from ray.util.placement_group import PlacementGroup

from loptune.errors import (
    ConfigError,
    DivergedError,
    MissingError,
    RewardError,
    StorageError,
    first_line,
    one_line,
)
from loptune.files import as_storage_error
from loptune.mlflow_runs import PARENT_TAG, VARIANT_TAG
from loptune.run_names import command_line
from sweep.programs.base import Assignment
from sweep.record.folder import SweepFolder
from sweep.search.history import TrialKey
from sweep.search.trial_report import GIVEN_UP, Failure, StorageFault, TrialReport, TuneResult
from sweep.space.scoring import scoring_of, second_of
from sweep.space.spec import SweepSpec
from sweep.tracking.outcomes import trial_name, trial_tags
from sweep.trials.nodes import (
    WorkerLostError,
    exit_when_disconnected,
    leave_if_files_missing,
    remember_silent_nodes,
)
from sweep.trials.worker import START_TIMEOUT_S, WorkerGroup
from trainer.attempt import Attempt, begin_attempt
from trainer.run_folder import RunFolder
from trainer.tracking.inputs import check_inputs
from trainer.types import RunContext

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 20.0
_FAILED_CLOSE_TIMEOUT_S = 5.0  # the other ranks may wait for the failed one in a collective


@dataclass(frozen=True)
class TrialPlan:
    """Settings that all trials of a sweep share."""

    spec: SweepSpec
    folder: SweepFolder
    sweep_id: str = ""  # id of the sweep, see `loptune.identity`
    working_dir: Path = Path()  # where the sweep was started
    parent_run: str | None = None  # id of the sweep's MLflow run
    inputs: tuple[Path, ...] = ()  # on a cluster: paths that every node must see
    environment: Path = Path()  # on this machine: file with the environment that commands get
    spans_nodes: bool = False  # whether the ranks of a trial run on several nodes

    def placement(self) -> tune.PlacementGroupFactory:
        """Return the resources of one trial, reserved together.

        The trial's own process only waits for its ranks, so its bundle is empty. Reserving even a
        fraction of a core for it would leave one core of a small machine idle.
        """
        strategy = "PACK" if self.spans_nodes else "STRICT_PACK"
        return tune.PlacementGroupFactory([{}, *self.spec.resources.bundles()], strategy=strategy)


class SweepTrial(tune.Trainable):  # type: ignore[misc]
    """Trains one configuration with one seed; ``step`` is one evaluation period of the trainer.

    Between two trials the ranks stay alive (``reset_config``), because importing torch takes longer
    than the first training steps of a small model. Every start continues from the newest intact
    checkpoint in the trial's folder, so a retry needs nothing but that folder.
    """

    plan: TrialPlan  # set by `bind_plan`
    _group: WorkerGroup | None = None
    _ranks_reused = False  # whether the ranks have run another trial
    _last_step: int
    _built: bool

    def setup(self, config: dict[str, Any]) -> None:
        """Store the trial's configuration; its ranks start with the first step."""
        if ray.is_initialized():  # reading the address would start Ray
            exit_when_disconnected(ray.get_runtime_context().gcs_address)
            if self.plan.spans_nodes:
                remember_silent_nodes()
        self._assign(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Switch to another trial in the same ranks, or in new ranks if its vLLM engine cannot be
        shared.
        """
        # the previous trial was stopped by the scheduler; a finished one is already closed
        self._close("KILLED")
        before = self._assignment.config
        self._assign(new_config)
        spec = self.plan.spec
        after = self._assignment.config
        if spec.resources.gpus_per_worker and not spec.program.shares_process(before, after):
            self._end_group()
        self._ranks_reused = self._group is not None
        return True

    def step(self) -> TuneResult:
        """Train to the next evaluation and report it.

        Returns:
            ``step``, ``score``, ``evaluation`` and all ``eval/*`` metrics. ``done`` is true
            together with ``finished`` after the last step, with ``stopped`` if the sweep should
            stop (and with ``storage`` if the reason is an error such as a full disk), or with
            ``reason`` if the trial failed and is not retried: a retry would fail again (divergence,
            invalid configuration, missing file, failed rewards), or no retry is left.

        Raises:
            Exception: any other failure, which the driver counts. Failures to start and
            out-of-memory errors in reused ranks do not count: the trial is retried in new ranks.
        """
        if self._assignment.stop_file.exists() and not self._built:  # running ranks save first
            return self._stopped()
        if self._given_up is not None:
            self._note_failure(self._given_up.reason)
            return self._failed(self._given_up)
        try:
            report, ranks = self._run_period()
            self._last_step = report.step
            if report.stopped:
                return self._stopped()
            if report.finished:
                self._close("FINISHED")
            return report.to_result(ranks=ranks)
        except (DivergedError, ConfigError, MissingError, RewardError) as error:
            step = error.step if isinstance(error, DivergedError) else self._last_step
            self._note_failure(error)
            failure = Failure.of(error, getattr(error, "what", first_line(error)))
            return self._failed(failure, step)
        except Exception as error:
            result = self._after_crash(error)
            if result is None:
                raise
            return result

    def _after_crash(self, error: Exception) -> TuneResult | None:
        """End the ranks after an error. Return the trial's next result if storage was the reason,
        or if reused ranks may be the reason: the trial then runs in new ranks. None if the attempt
        has failed.
        """
        in_reused_ranks = self._ranks_reused and (not self._built or "memory" in str(error))
        self._note_failure(error)
        self._close("KILLED", _FAILED_CLOSE_TIMEOUT_S)
        self._end_group()
        fault = as_storage_error(error, self._assignment.context.run_dir)
        if fault is not None:
            return self._stopped(fault)
        if not in_reused_ranks:
            return None
        logger.warning("%s failed in reused ranks; retrying in new ones", self._assignment.trial)
        return self.step()

    def cleanup(self) -> None:
        """End the ranks."""
        self._close("KILLED")
        self._end_group()

    def _close(self, status: str, timeout: float = _CLOSE_TIMEOUT_S) -> None:
        """Close the trial's run on all ranks; kill ranks that do not answer."""
        if self._group is None or not self._built:
            return
        self._built = False
        try:
            self._group.call("close", status, timeout=timeout)
        except Exception:
            logger.warning(
                "the ranks of %s could not close their run", self._assignment.trial, exc_info=True
            )
            self._end_group()

    def _end_group(self) -> None:
        group = self._group
        self._group = None
        self._ranks_reused = False
        if group is not None:
            group.kill()

    def _assign(self, config: dict[str, Any]) -> None:
        spec = self.plan.spec
        folder = self.plan.folder
        key = TrialKey(int(config["configuration"]), int(config["seed"]))
        _, variant = spec.program.rule_of(config["overrides"])
        tags = {**trial_tags(spec, key, self.plan.sweep_id), VARIANT_TAG: variant}
        if self.plan.parent_run:
            tags[PARENT_TAG] = self.plan.parent_run
        context = RunContext(
            run_dir=folder.trial(key.name),
            runs_dir=folder.runs_dir,
            experiment=spec.experiment,
            run_name=trial_name(spec, key, variant),
            tags=tags,
            shares_process=True,
            attempt=config.get("attempt", 0),
            metric=spec.objective.metrics[0],
            window=spec.objective.window,
            passed_checks=folder.passed_checks,
        )
        self._assignment = Assignment(
            trial=key.name,
            config=spec.program.configure(config["overrides"]),
            context=context,
            stop_file=folder.stop,
            credentials=folder.credentials,
            environment=self.plan.environment,
            inputs=self.plan.inputs,
            working_dir=self.plan.working_dir,
            stall_timeout_s=spec.limits.stall_timeout_s,
            scoring=scoring_of(spec),
            second=second_of(spec),
        )
        self._overrides = dict(config["overrides"])
        self._given_up: Failure | None = config.get(GIVEN_UP)
        self._built = False
        self._last_step = 0

    def _run_period(self) -> tuple[TrialReport, list[int]]:
        """Return the report of the first rank, and the process ids of all ranks.

        Raises:
            WorkerLostError: a rank died or hung, or the ranks are at different steps.
            Exception: the unchanged exception of a rank.
        """
        group = self._ready_group()
        metrics_file = self._run_folder.metrics

        def progress() -> tuple[int, bool]:
            size = metrics_file.stat().st_size if metrics_file.exists() else 0
            # a stop counts as progress, because saving may take as long as a step
            return size, self._assignment.stop_file.exists()

        reports: list[TrialReport] = group.call(
            "train_until_evaluation",
            timeout=self.plan.spec.limits.stall_timeout_s,
            progress=progress,
        )
        steps = {report.step for report in reports}
        if len(steps) > 1:
            raise WorkerLostError(f"the ranks disagree on the training step: {sorted(steps)}")
        return reports[0], group.pids

    @property
    def _run_folder(self) -> RunFolder:
        return RunFolder(self._assignment.context.run_dir)

    def _ready_group(self) -> WorkerGroup:
        resources = self.plan.spec.resources
        if self._group is None:
            self._group = WorkerGroup(
                self._placement(),
                workers=resources.workers_per_trial,
                cpus=resources.cpus_per_worker,
                gpus=resources.gpus_per_worker,
            )
        if not self._built:
            self._take_over_folder()
            self._check_inputs()
            program = self.plan.spec.program
            program.save(self._overrides, self._run_folder.config)
            # Loading may take minutes on a busy machine. The stall limit is meant for training
            # steps, so loading gets at least START_TIMEOUT_S.
            timeout = max(START_TIMEOUT_S, self.plan.spec.limits.stall_timeout_s)
            built = self._group.call("build", program, self._assignment, timeout=timeout)
            self._last_step = built[0]
            self._built = True
        return self._group

    def _placement(self) -> PlacementGroup:
        """Return the resources in which the ranks start."""
        placement = get_current_placement_group()
        assert placement is not None, "the trial is outside of its placement group"
        return placement

    def _take_over_folder(self) -> None:
        """Invalidate earlier attempts at the trial."""
        leave_if_files_missing(self.plan.inputs)
        context = self._assignment.context
        begin_attempt(context.run_dir, context.attempt)

    def _check_inputs(self) -> None:
        """Raise StorageError if files have changed since the sweep started."""
        folder = self.plan.folder
        try:
            check_inputs(folder.root, "sweep", False, self.plan.working_dir)
        # an error of the sweep, not of this trial: all trials would use the changed files
        except ConfigError as error:
            resume = command_line("sweep", "resume", folder.name, runs_dir=folder.runs_dir)
            again = f"restore the file and run {resume}, or add --accept-changes"
            raise StorageError(error.what, error.where, again, error.key, code=error.code) from None

    def _failed(self, failure: Failure, step: int = 0) -> TuneResult:
        timeout = _CLOSE_TIMEOUT_S
        if self.plan.spec.resources.workers_per_trial > 1:
            timeout = _FAILED_CLOSE_TIMEOUT_S
        self._close("FAILED", timeout)
        return TrialReport(step, reason=failure.reason, by_settings=failure.by_settings).to_result()

    def _note_failure(self, error: Exception | str) -> None:
        """Write the reason to the trial's folder; Tune keeps it only in its own files."""
        text = one_line(error, 500) or type(error).__name__
        context = self._assignment.context
        with contextlib.suppress(OSError, StorageError):
            Attempt(context.run_dir, context.attempt).check()
            self._run_folder.failure.write_text(text + "\n", "utf-8")

    def _stopped(self, fault: StorageError | None = None) -> TuneResult:
        self._close("KILLED")
        storage = None if fault is None else StorageFault.of(fault)
        return TrialReport(self._last_step, stopped=True, storage=storage).to_result()


def bind_plan(plan: TrialPlan) -> type[SweepTrial]:
    """Return the class Tune registers for one sweep: ``SweepTrial`` with its plan."""
    return type("SweepTrial", (SweepTrial,), {"plan": plan, "__module__": __name__})
