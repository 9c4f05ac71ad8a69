"""Running a sweep: everything is checked, then Ray Tune runs the trials, then the winner is named.

The driver keeps nothing that it could lose: what was proposed and how it ended is in the ledger, what was
trained is in the trials' folders. To resume is to start Tune anew with a searcher that first hands out the
trials without a result; each continues from its own newest checkpoint.
"""

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
from ray import tune
from ray.exceptions import RayError

from sweep.record.again import begin_damaged_again, retry_failed
from sweep.record.control import StopControl, orderly_signals
from sweep.record.disk import CheckpointRoom, EndedTrials
from sweep.record.folder import SweepFolder, command, end_leftovers, free_name, hold, raise_held, write_spec
from sweep.record.guard import MARKER, guarded
from sweep.record.parent_run import ParentRun, TrialOutcome, open_parent_run
from sweep.record.summary import (
    best_configuration,
    caveats,
    gpu_hours_spent,
    planned_trials,
    trial_outcomes,
    trial_rows,
)
from sweep.record.unsent import send_unsent
from sweep.search.ledger import lines_without_checksum
from sweep.search.searcher import ConfigurationSearcher
from sweep.space.points import trial_config
from sweep.space.spec import SweepSpec
from sweep.trials.cluster import Node, check_fit, local_node, slots, start_ray
from sweep.trials.preflight import check_training
from sweep.trials.reach import check_reach
from sweep.trials.scheduler import make_scheduler
from sweep.trials.trainable import TrialPlan, bind
from sweep.trials.watch import watched
from sweep.trials.worker import TrainerFactory, build_trainer
from sweep.views.progress import Reporter, SweepCallback
from sweep.views.ui import save_view
from trainer.config.schema import save_config
from trainer.errors import INTERRUPTED, ConfigError, MissingError, StorageError, UserError, first_line
from trainer.scratch import scratch_folder
from trainer.tracking.mlflow_store import prepare_store, tracking_uri

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """How to run, as opposed to what."""

    address: str | None = None  # of a Ray cluster; None starts Ray here
    cpus: int | None = None  # CPUs of this machine to use; all if None
    factory: TrainerFactory = build_trainer
    check: Callable[[SweepSpec], None] = check_training  # what the factory needs, before Ray starts
    report: bool = True  # whether to write one at the end
    retry_failed: bool = False  # of a resumption: try trials again that have failed
    start_over: bool = False  # of a resumption: begin trials again that have no intact checkpoint left


@dataclass(frozen=True)
class Session:
    """One driver at work on a sweep: from the start of Ray to the end of the search."""

    spec: SweepSpec
    folder: SweepFolder
    options: Options
    nodes: list[Node]
    parent: ParentRun | None  # None while tracking is offline
    control: StopControl
    reporter: Reporter

    @property
    def trial_plan(self) -> TrialPlan:
        """What all trials have in common."""
        return TrialPlan(
            sweep=self.folder.name,
            experiment=_experiment(self.spec),
            sweep_dir=self.folder.root,
            runs_dir=self.folder.runs_dir,
            working_dir=Path.cwd(),
            base=self.spec.base,
            objective=self.spec.objective,
            resources=self.spec.resources,
            stop_file=self.folder.stop,
            parent_run=self.parent.run_id if self.parent else None,
            stall_timeout_s=self.spec.limits.stall_timeout_s,
            factory=self.options.factory,
        )


class ResumableError(StorageError):
    """What failed is outside of the sweep: its folder and log stay, and it is there to be resumed."""

    def __init__(self, what: str, folder: SweepFolder) -> None:
        super().__init__(what, str(folder.log), command("resume", folder))


def start_sweep(spec: SweepSpec, folder: SweepFolder, options: Options) -> int:
    """Run a new sweep and return the exit code.

    Raises:
        ConfigError: a sweep of that name exists.
        MissingError, StorageError, NameHeldError: something it needs is not there.
    """
    raise_held(folder)
    if folder.exists() or folder.ledger.exists():
        raise ConfigError(
            f"sweep {folder.name} exists already",
            str(folder.root),
            f"{command('resume', folder)}, or choose another --name",
        )
    _check(spec, options)
    new_runs_dir = not folder.runs_dir.exists()
    try:
        with hold(folder):
            write_spec(folder, spec)
            return _drive(spec, folder, options)
    except ResumableError:
        raise
    except (ConfigError, MissingError, StorageError):
        if not folder.ledger.exists():
            free_name(folder, new_runs_dir)
        raise


def resume_sweep(spec: SweepSpec, folder: SweepFolder, options: Options) -> int:
    """Go on with a sweep, possibly with more configurations than before, and return the exit code.

    Raises:
        MissingError, StorageError, NameHeldError: something it needs is not there.
    """
    raise_held(folder)
    _check(spec, options)
    with hold(folder):
        ended = end_leftovers(folder)
        if ended:
            print(f"ended {ended} processes that an earlier driver left behind", flush=True)
        old = lines_without_checksum(folder.ledger) if folder.ledger.exists() else 0
        if old:
            print(f"{old} lines of {folder.ledger} have no checksums: damage in them may go unnoticed", flush=True)
        if options.retry_failed:
            print(f"trying again: {', '.join(retry_failed(folder)) or 'no trial has failed'}", flush=True)
        if options.start_over:
            print(f"beginning again: {', '.join(begin_damaged_again(spec, folder)) or 'no trial'}", flush=True)
        write_spec(folder, spec)
        return _drive(spec, folder, options)


def _check(spec: SweepSpec, options: Options) -> None:
    if options.address is None:
        check_fit(spec.resources, [local_node(options.cpus)])
    options.check(spec)


def _drive(spec: SweepSpec, folder: SweepFolder, options: Options) -> int:
    folder.stop.unlink(missing_ok=True)
    # Every process of this sweep inherits the marker, so that a later driver finds what this one leaves.
    os.environ[MARKER] = str(folder.root)
    control = StopControl(folder, spec.limits, spec.resources.gpus_per_trial, gpu_hours_spent(spec, folder))
    ended = ResumableError(f"the driver of sweep {folder.name} was ended by force; nothing is lost", folder)
    parent: ParentRun | None = None
    try:
        with guarded(folder.root, str(ended)), watched(control) as watch, _ray(options, folder) as nodes:
            watch()
            check_fit(spec.resources, nodes)
            if options.address is not None:
                check_reach(spec, folder)
            parent = open_parent(spec, folder)
            with Reporter(folder, planned_trials(spec), trial_rows(spec, folder)) as reporter:
                _search(Session(spec, folder, options, nodes, parent, control, reporter))
        control.check_folder()
    except KeyboardInterrupt:
        control.request("interrupted", interrupted=True)
    except BaseException:
        if parent is not None:
            with contextlib.suppress(StorageError):
                parent.finish("FAILED")
        raise
    return _finish(spec, folder, options, parent, control)


def _search(session: Session) -> None:
    spec, folder = session.spec, session.folder
    room, ended = CheckpointRoom(spec, folder), EndedTrials(spec, folder)

    def check_room(trial: str, running: Sequence[str]) -> None:
        ended.thin(searcher.configurations)
        lack = room.lack(trial, running)
        if lack is not None:
            session.control.fail(lack)

    searcher = ConfigurationSearcher(spec, folder.ledger, folder.study, check_room)
    try:
        with (
            orderly_signals(session.control, session.reporter.line),
            _states_in_mlflow(session, searcher) as changed,
            scratch_folder("tune") as scratch,
        ):
            callback = SweepCallback(session.reporter, spec.resources, spec.limits.max_failures, changed)
            session.control.attach(searcher.halt, callback.running)
            _fit(_tuner(session, searcher, callback, scratch), searcher, folder)
        ended.thin(searcher.configurations)
    finally:
        searcher.close()


def _fit(tuner: tune.Tuner, searcher: ConfigurationSearcher, folder: SweepFolder) -> None:
    try:
        tuner.fit()
    except tune.TuneError as error:
        raise searcher.failure or _given_up(error, folder) from error
    except RuntimeError as error:
        # Where Ray has ended a trial's own process for memory, Tune does not count it as a failure of the trial.
        if not isinstance(error.__cause__, RayError):
            raise
        told = f"Ray has ended a trial: {first_line(error.__cause__)}"
        raise ResumableError(told, folder) from error


def _given_up(error: tune.TuneError, folder: SweepFolder) -> ResumableError:
    """Tune passes on a whole traceback: the last line that names an error is the one to show."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    told = (named or lines or [type(error).__name__])[-1]
    return ResumableError(f"Ray Tune gave up: {told}", folder)


def _tuner(
    session: Session, searcher: ConfigurationSearcher, callback: SweepCallback, scratch: Path
) -> tune.Tuner:
    spec, plan = session.spec, session.trial_plan
    return tune.Tuner(
        tune.with_resources(bind(plan), plan.placement()),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=make_scheduler(spec, session.folder),
            num_samples=-1,
            max_concurrent_trials=spec.limits.max_concurrent or max(1, slots(spec.resources, session.nodes)),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=session.folder.name,
            # Nothing of it is needed once Tune has ended: a restart is built from the ledger.
            storage_path=str(scratch),
            failure_config=tune.FailureConfig(max_failures=spec.limits.max_failures),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[callback],
            stop=session.control,
            verbose=0,
        ),
    )


@contextmanager
def _ray(options: Options, folder: SweepFolder) -> Iterator[list[Node]]:
    try:
        try:
            nodes = start_ray(options.address, options.cpus, folder.log)
        except UserError:
            raise
        except Exception as error:  # what Ray raises where one of its daemons does not come up
            told = f"Ray does not start: {first_line(error)}"
            raise ResumableError(told, folder) from error
        yield nodes
    finally:
        ray.shutdown()


def open_parent(spec: SweepSpec, folder: SweepFolder) -> ParentRun | None:
    """The sweep's run in MLflow with its view and the states so far; None while tracking is offline.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    tracking = spec.base.tracking
    if tracking.offline:
        return None
    uri = tracking_uri(tracking, folder.runs_dir)
    prepare_store(uri)
    # A tag, not a parameter: `sweep extend` changes it.
    tags = {
        **tracking.tags,
        "loptune.planned_trials": str(planned_trials(spec)),
        "loptune.adaptive": str(spec.adaptive).lower(),
        **({"loptune.baseline": "0"} if spec.baselines else {}),
        **({"loptune.two_stages": "true"} if spec.full else {}),
    }
    parent = open_parent_run(uri, _experiment(spec), folder.name, tags, _parent_params(spec))
    parent.log_artifact(folder.space)
    save_view(uri, _experiment(spec), spec)
    parent.reconcile(trial_outcomes(spec, folder))
    return parent


def _experiment(spec: SweepSpec) -> str:
    return spec.base.tracking.experiment or spec.name


def _parent_params(spec: SweepSpec) -> dict[str, str]:
    return {
        "objective": f"{spec.objective.mode} {spec.objective.metric}",
        "objective.window": str(spec.objective.window),
        "objective.worthwhile": f"{spec.objective.worthwhile:g}",
        "sampler": spec.search.sampler,
        "configurations": str(planned_trials(spec) // len(spec.seeds)),
        "seeds": ", ".join(map(str, spec.seeds)),
        "gpus_per_trial": f"{spec.resources.gpus_per_trial:g}",
        "cpus_per_trial": str(spec.resources.workers_per_trial * spec.resources.cpus_per_worker),
        **{f"space.{key}": parameter.kind for key, parameter in spec.parameters.items()},
    }


@contextmanager
def _states_in_mlflow(session: Session, searcher: ConfigurationSearcher) -> Iterator[threading.Event]:
    """Keep the states in MLflow in step with the ledger, from a thread, because MLflow may hang."""
    spec, folder, parent = session.spec, session.folder, session.parent
    changed, over = threading.Event(), threading.Event()

    known: dict[str, TrialOutcome] = {}  # as MLflow has them

    def work() -> None:
        while parent is not None and not over.is_set():
            if changed.wait(timeout=1.0):
                changed.clear()
                try:
                    outcomes = trial_outcomes(spec, folder, tuple(searcher.configurations))
                    latest = {outcome.key: outcome for outcome in outcomes}
                    parent.reconcile((one for key, one in latest.items() if known.get(key) != one), create=False)
                    known.update(latest)
                except Exception as error:  # the end of the sweep does it again, and reports
                    logger.warning("MLflow does not have the latest states: %s", error)

    thread = threading.Thread(target=work, name="mlflow-states", daemon=True)
    thread.start()
    try:
        yield changed
    finally:
        over.set()
        thread.join(timeout=5)


def _finish(
    spec: SweepSpec, folder: SweepFolder, options: Options, parent: ParentRun | None, control: StopControl
) -> int:
    rows = trial_rows(spec, folder)
    ended = [row for row in rows if row.ended]
    failed = [row for row in rows if row.state == "FAIL"]
    # The report reads MLflow: the last states come first.
    in_mlflow = _complete_mlflow(spec, folder, parent, control)
    problem = control.problem or in_mlflow
    report = _report(spec, folder, parent) if problem is None and options.report else None
    states = {state: sum(row.state == state for row in rows) for state in ("COMPLETE", "PRUNED", "FAIL")}
    print(
        f"\n{len(ended)} trials: {states['COMPLETE']} complete, {states['PRUNED']} stopped early, "
        f"{states['FAIL']} failed"
    )
    for row in failed:
        print(f"failed: {row.trial}  {row.reason}  ({folder.trial(row.trial) / 'stderr.log'})")
    best = best_configuration(spec, folder)
    if best is not None:
        print(best.text(spec.objective))
        for line in caveats(spec, folder):
            print(f"       {line}")
    if report is not None:
        print(f"report: {report}")
    if parent is not None:
        print(f"MLflow: {command('ui', folder)}")
    else:
        print(f"offline: {command('upload', folder)} sends it to MLflow and writes the report")
    if problem is not None:
        print(problem, flush=True)
    if control.reason is not None:
        left = planned_trials(spec) - len(ended)
        print(f"{control.reason}; {left} trials are left, nothing is lost. To go on:")
        print(command("resume", folder), flush=True)
    if control.interrupted:
        return INTERRUPTED
    if problem is not None:
        return problem.exit_code
    return 1 if failed else 0


def _report(spec: SweepSpec, folder: SweepFolder, parent: ParentRun | None) -> Path | None:
    """Write the report and give MLflow the sweep's files; a failure here must not cost the sweep its end."""
    if parent is None:
        return None
    try:
        from sweep.record.report import report

        path = report(folder, spec, parent.uri)
        best = best_configuration(spec, folder)
        if best is not None:
            save_config(trial_config(spec.base, best.parameters, spec.seeds[0]), folder.report / "best.yaml")
        parent.log_artifact(folder.report)
        if folder.study.exists():
            parent.log_artifact(folder.study)
        return path
    except Exception as error:
        logger.exception("no report")
        print(f"no report: {' '.join(str(error).split())[:200]} ({folder.log}); try {command('report', folder)}")
        return None


def _complete_mlflow(
    spec: SweepSpec, folder: SweepFolder, parent: ParentRun | None, control: StopControl
) -> UserError | None:
    if parent is None:
        return None
    try:
        unsent = send_unsent(folder, parent.uri)
        if unsent is not None:
            return unsent
        parent.reconcile(trial_outcomes(spec, folder))
        parent.finish("KILLED" if control.reason is not None else "FINISHED")
    except StorageError as error:
        return error
    return None
