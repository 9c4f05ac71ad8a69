"""Run a sweep: check everything, run the trials under Ray Tune, report the best.

The driver keeps no state that a crash could lose: proposals and results are in the event log,
checkpoints in the trials' folders. Resuming starts a new Tuner whose searcher first submits the
trials without a result; each resumes from its newest checkpoint.
"""

import contextlib
import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ray import tune
from ray.exceptions import RayError

from loptune.errors import (
    INTERRUPTED,
    ConfigError,
    MissingError,
    StorageError,
    UserError,
    described,
    first_line,
)
from loptune.identity import identity
from loptune.run_names import lock_folder, raise_if_locked
from loptune.temporary import remove_leftovers
from loptune.terminal.lasting_output import lasting_output
from loptune.terminal.waiting import waiting
from sweep.driver.attempts import RetryBudget, TrialEvents, make_searcher
from sweep.driver.control import StopControl, graceful_signals, ray_watchdog
from sweep.driver.guard import MARKER, dead_scratch, end_leftovers, guarded, scratch_folder
from sweep.driver.resume_options import check_checkpoints, restart_damaged, retry_failed
from sweep.programs.base import ResourcesSpec
from sweep.programs.environment import set_for_sweep, write_environment
from sweep.record.best import choose_best
from sweep.record.disk import shrink_ended
from sweep.record.folder import free_name, write_spec
from sweep.record.identical_trials import identical_trials
from sweep.record.sweep_record import SweepRecord, report_errors_printed
from sweep.search.searcher import ConfigurationSearcher
from sweep.space.scoring import logged_metrics
from sweep.space.source import SpaceSource, write_source
from sweep.space.spec import SweepSpec
from sweep.tracking.outcomes import EndedTrial, ended_trials
from sweep.tracking.parent_run import ParentRun, open_parent
from sweep.tracking.upload import send_ended, send_unsent
from sweep.trials.cluster import (
    Node,
    check_fit,
    concurrent_trials,
    present_nodes,
    ray_running,
    spans_nodes,
)
from sweep.trials.credentials import write_credentials
from sweep.trials.internals import without_wandb
from sweep.trials.limits import with_limits
from sweep.trials.scheduler import make_scheduler
from sweep.trials.shared_files import check_shared_files
from sweep.trials.trainable import TrialPlan, bind_plan
from sweep.views.event_lines import CONSOLE, EventLines, say
from sweep.views.live import live_table
from trainer.run_folder import RunFolder
from trainer.tracking.inputs import check_inputs, record_inputs
from trainer.tracking.mlflow_store import imported_meanwhile, tracking_uri

logger = logging.getLogger(__name__)

# Modules of the report. They import pandas, scipy and plotly, which takes a second.
_AT_THE_END = ("sweep.record.results", "sweep.tracking.publish_report")
ENVIRONMENT = "environment.json"  # in the scratch folder: the environment that commands get


@dataclass(frozen=True)
class Options:
    """Options for running a sweep."""

    address: str | None = None  # address of a Ray cluster; None starts Ray here
    cpus: int | None = None  # CPUs of this machine to use; all if None
    report: bool = True  # whether to write a report at the end
    retry_failed: bool = False  # on resume: retry failed trials
    # on resume: restart trials without an intact checkpoint
    start_over: bool = False
    accept_changes: bool = False  # continue even if data or reward files have changed
    source: SpaceSource | None = None  # file of the space, for a new sweep

    @property
    def machine(self) -> list[str]:
        """Command-line arguments that choose the machine."""
        arguments = []
        if self.address:
            arguments += ["--address", self.address]
        if self.cpus:
            arguments += ["--cpus", str(self.cpus)]
        return arguments


@dataclass(frozen=True, kw_only=True)
class _Session:
    """State of one driver from the start of Ray to the end of the search."""

    sweep: SweepRecord
    options: Options
    nodes: list[Node]
    parent: ParentRun | None  # None while tracking is offline
    control: StopControl
    scratch: Path  # this driver's private folder on this machine

    @property
    def trial_plan(self) -> TrialPlan:
        """Settings that all trials share."""
        parent = self.parent.run_id if self.parent else None
        spec = self.sweep.spec
        inputs: tuple[Path, ...] = ()
        environment = self.scratch / ENVIRONMENT
        if self.options.address:
            inputs = (self.sweep.folder.root, *spec.program.paths(spec.values_of_trials()))
            environment = Path()
        return TrialPlan(
            spec=spec,
            folder=self.sweep.folder,
            sweep_id=identity(self.sweep.folder.root),
            working_dir=Path.cwd(),
            parent_run=parent,
            inputs=inputs,
            environment=environment,
            spans_nodes=spans_nodes(spec.resources, self.nodes),
        )

    def capacity(self) -> int:
        """Return how many trials may run now; cluster nodes come and go."""
        nodes = present_nodes() if self.options.address else self.nodes
        return max(1, concurrent_trials(self.sweep.spec, nodes))


class ResumableError(StorageError):
    """A failure outside the sweep, which can be resumed; the folder and the log are kept."""

    def __init__(self, what: str, control: StopControl, code: str) -> None:
        super().__init__(what, str(control.folder.log), control.resume, code=code)


@lasting_output()
def start_sweep(sweep: SweepRecord, options: Options) -> int:
    """Run a new sweep and return the exit code.

    Raises:
        ConfigError: a sweep or a run of that name exists, or the program cannot run.
        MissingError, StorageError, NameInUseError: a resource, the storage or the name is
            unavailable.
    """
    folder = sweep.folder
    raise_if_locked(folder.root, "sweep")
    if folder.exists() or folder.event_log.exists():
        raise ConfigError(
            f"sweep {folder.name} exists already",
            str(folder.root),
            f"resume it with {sweep.command('resume')}, or choose another --name",
            key="name",
            code="sweep-exists",
        )
    if RunFolder(folder.root).config.exists():
        raise ConfigError(
            f"{folder.name} is the name of a single run",
            str(folder.root),
            "choose another --name",
            key="name",
            code="name-of-a-run",
        )
    check_program(sweep.spec)
    try:
        with lock_folder(folder.root, "sweep"):
            check_and_record_inputs(sweep, options)
            write_spec(folder, sweep.spec)
            if options.source is not None:
                write_source(folder.root, options.source)
            return _run_driver(sweep, options)
    except ResumableError:
        raise
    except (ConfigError, MissingError, StorageError):
        if not folder.event_log.exists():
            free_name(folder)
        raise


@lasting_output()
def resume_sweep(sweep: SweepRecord, options: Options) -> int:
    """Resume a sweep, possibly with more configurations than before, and return the exit code.

    Raises:
        ConfigError: data or reward files have changed, or the program cannot run.
        MissingError, StorageError, NameInUseError: a resource, the storage or the name is
            unavailable.
    """
    folder = sweep.folder
    with lock_folder(folder.root, "sweep", create=False):
        folder.stop.unlink(missing_ok=True)  # left by an earlier driver
        check_program(sweep.spec)
        check_and_record_inputs(sweep, options)
        killed = end_leftovers(folder.root)
        if killed:
            print(f"ended {killed} processes that an earlier driver left behind", flush=True)
        if options.retry_failed:
            print(
                f"retrying: {', '.join(retry_failed(sweep)) or 'none (no trial has failed)'}",
                flush=True,
            )
        if options.start_over:
            restarted = restart_damaged(sweep.reloaded())
            print(f"restarting from step 0: {', '.join(restarted) or 'none'}", flush=True)
        else:
            check_checkpoints(sweep.reloaded())
        write_spec(folder, sweep.spec)
        return _run_driver(sweep.reloaded(), options)


def check_program(spec: SweepSpec) -> None:
    """Check everything that could prevent a trial from running.

    Raises:
        UserError: for the first fault found.
    """
    text = "checking the trials' program"
    say(text)
    with waiting(text):
        values = spec.values_of_trials()
        spec.program.check_early(values, spec.resources, logged_metrics(spec))


def check_and_record_inputs(sweep: SweepRecord, options: Options) -> None:
    """Reject data and reward files that changed since the sweep started, unless accepted; record
    the current files.

    Raises:
        ConfigError: files have changed.
    """
    root = sweep.folder.root
    changes = check_inputs(root, "sweep", options.accept_changes)
    spec = sweep.spec
    record_inputs(root, spec.program.files(spec.values_of_trials()), changes)
    for change in changes:
        print(f"accepted: {change}", flush=True)


def _run_driver(sweep: SweepRecord, options: Options) -> int:
    spec = sweep.spec
    folder = sweep.folder
    # Every process of this sweep inherits the marker, so that a later driver finds leftover
    # processes.
    set_for_sweep(MARKER, str(folder.root))
    control = StopControl(sweep, sweep.command("resume", *options.machine))
    killed = ResumableError(
        f"the driver of sweep {folder.name} was killed; nothing is lost", control, "driver-killed"
    )
    parent: ParentRun | None = None
    try:
        with guarded_scratch(folder.root, killed) as scratch, contextlib.ExitStack() as stack:
            write_environment(scratch / ENVIRONMENT)  # before Ray changes the environment
            tracking = spec.program.tracking_settings
            # on a cluster, the variables that MLflow needs here would reach the trials
            if options.address is None and not tracking.offline:
                uri = tracking_uri(tracking, folder.runs_dir)
                stack.enter_context(imported_meanwhile(uri, *_AT_THE_END))
            nodes = stack.enter_context(
                started_ray(options, control, scratch / "ray", spec.resources)
            )
            if options.address is not None:
                check_shared_files(sweep)
            if not tracking.offline:
                say("connecting to MLflow")
            with waiting("opening the sweep's record"):
                parent = open_parent(sweep)
            session = _Session(
                sweep=sweep,
                options=options,
                nodes=nodes,
                parent=parent,
                control=control,
                scratch=scratch,
            )
            _search(session)
        control.check_folder()
    except KeyboardInterrupt:
        control.request_stop("interrupted", by_user=True)
    except BaseException:
        if parent is not None:
            with contextlib.suppress(StorageError):
                parent.finish("FAILED")
        raise
    return _finish(sweep, options, parent, control)


def _search(session: _Session) -> None:
    """Run trials until the search has ended or is stopped."""
    sweep = session.sweep
    spec = sweep.spec
    control = session.control
    searcher = make_searcher(sweep, control, session.capacity)
    with graceful_signals(control, say), _states_in_mlflow(session) as changed:
        events = TrialEvents(
            sweep.folder,
            RetryBudget(spec.limits.max_failures),
            EventLines(sweep.folder, spec),
            changed,
        )
        control.attach(searcher.stop, events.running)
        say("starting the first trials")
        with live_table(sweep, CONSOLE, events.scores):
            _fit(_tuner(session, searcher, events), searcher, control)
    shrink_ended(sweep, set(), all_have_closed=True)


def _fit(tuner: tune.Tuner, searcher: ConfigurationSearcher, control: StopControl) -> None:
    try:
        with without_wandb():
            tuner.fit()
    except tune.TuneError as error:
        raise searcher.failure or tune_error(error, control) from error
    except RuntimeError as error:
        # If Ray killed a trial's process for lack of memory, Tune does not count this as a failure
        # of the trial.
        if not isinstance(error.__cause__, RayError):
            raise
        raise ResumableError(
            f"Ray killed a trial: {first_line(error.__cause__)}", control, "trial-killed"
        ) from error


def tune_error(error: tune.TuneError, control: StopControl) -> ResumableError:
    """Return the error that Tune wraps: Tune's own message is a traceback."""
    cause: BaseException = error
    while isinstance(cause, tune.TuneError):
        wrapped = cause.__cause__ or cause.__context__
        if wrapped is None:
            break
        cause = wrapped
    what = f"Ray Tune stopped: {described(cause)}"
    return ResumableError(what, control, "tune-gave-up")


def _tuner(session: _Session, searcher: ConfigurationSearcher, events: TrialEvents) -> tune.Tuner:
    plan = session.trial_plan
    return tune.Tuner(
        tune.with_resources(bind_plan(plan), plan.placement()),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=make_scheduler(session.sweep),
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=session.sweep.folder.name,
            # Not needed after Tune has ended: a resume is built from the event log.
            storage_path=str(session.scratch / "tune"),
            # `RetryBudget` counts failures
            failure_config=tune.FailureConfig(max_failures=-1),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[events],
            stop=session.control,
            verbose=0,
        ),
    )


@contextmanager
def guarded_scratch(root: Path, killed: ResumableError) -> Iterator[Path]:
    """Yield a private folder of this process, and run a guard during the block. Files of dead
    drivers are removed first.

    Args:
        root: folder of the sweep.
        killed: printed by the guard if this process is killed.
    """
    for dead, _ in dead_scratch():
        shutil.rmtree(dead, ignore_errors=True)
    remove_leftovers()
    with scratch_folder(root) as scratch, guarded(root, scratch, str(killed)):
        yield scratch


@contextmanager
def started_ray(
    options: Options, control: StopControl, folder: Path, resources: ResourcesSpec
) -> Iterator[list[Node]]:
    """Start Ray, or connect to a cluster, for the duration of the block; yield its nodes. If Ray
    dies within the block, the process ends soon.

    Args:
        options: address of the cluster, or the CPUs to use.
        control: raises the error if Ray has died.
        folder: folder of Ray's files.
        resources: resources of a trial.

    Raises:
        ResumableError: Ray did not start.
        MissingError: there is no cluster at the address, or the nodes never have the resources.
    """
    text = f"connecting to Ray at {options.address}" if options.address else "starting Ray"
    say(text)
    with contextlib.ExitStack() as stack:
        try:
            with waiting(text):
                nodes = stack.enter_context(
                    ray_running(options.address, options.cpus, folder, control.folder.log)
                )
            if options.address is not None:
                stack.callback(control.folder.credentials.unlink, missing_ok=True)
                write_credentials(control.folder.credentials)
        except UserError:
            raise
        except Exception as error:  # Ray raises various errors if a daemon does not start
            what = with_limits(f"Ray did not start: {first_line(error)}")
            raise ResumableError(what, control, "ray-did-not-start") from error
        stack.enter_context(ray_watchdog(control))
        check_fit(resources, nodes)
        yield nodes


@contextmanager
def _states_in_mlflow(session: _Session) -> Iterator[threading.Event]:
    """Send short trials and the states of all trials to MLflow in a thread, because MLflow may
    hang.
    """
    sweep = session.sweep
    parent = session.parent
    changed = threading.Event()
    over = threading.Event()

    sent: dict[str, EndedTrial] = {}  # key of a run -> state last sent to MLflow

    def send_changed(parent: ParentRun) -> None:
        ended = ended_trials(sweep)
        new = [each for each in ended if sent.get(each.key) != each]
        send_ended(sweep, parent.uri, new)
        parent.reconcile(new, create=False)
        sent.update({each.key: each for each in ended})

    def work() -> None:
        while parent is not None and not over.is_set():
            if changed.wait(timeout=1.0):
                changed.clear()
                try:
                    send_changed(parent)
                except Exception as error:  # retried at the end of the sweep, which reports errors
                    logger.warning("MLflow does not have the latest states: %s", error)

    thread = threading.Thread(target=work, name="mlflow-states", daemon=True)
    thread.start()
    try:
        yield changed
    finally:
        over.set()
        thread.join(timeout=5)


def _finish(
    sweep: SweepRecord, options: Options, parent: ParentRun | None, control: StopControl
) -> int:
    with waiting("writing the report"):
        tracking_error = _complete_mlflow(sweep, parent, control)
        can_send = tracking_error is None
        report, best = _write_report(sweep, options, parent if can_send else None)
    problem = control.problem or tracking_error
    ended, failed = _print_outcomes(sweep)
    for line in identical_trials(sweep):
        print(f"warning: {line}")
    if best:
        print(best)
    if report is not None:
        print(f"report: {report}")
    if parent is not None:
        print(f"MLflow: {sweep.command('ui')}")
    else:
        print(f"offline: to send the records to MLflow, run {sweep.command('upload')}")
    if problem is not None:
        print(problem, flush=True)
    if control.stopped:
        print(f"{control.reason}; {sweep.planned - ended} trials remain. To resume:")
        print(control.resume, flush=True)
    if control.by_user:
        return INTERRUPTED
    if problem is not None:
        return problem.exit_code
    return 1 if failed else 0


def _print_outcomes(sweep: SweepRecord) -> tuple[int, int]:
    """Print how the trials ended, and return how many have ended and how many have failed."""
    trials = sweep.trials()
    ended = sum(trial.ended for trial in trials)
    failed = [trial for trial in trials if trial.state == "FAIL"]
    states = [trial.state for trial in trials]
    print(
        f"\n{ended} trials: {states.count('COMPLETE')} complete, "
        f"{states.count('PRUNED')} stopped early, {len(failed)} failed"
    )
    for trial in failed:
        log = RunFolder(sweep.folder.trial(trial.name)).stderr
        print(f"failed: {trial.name}  {trial.reason}  ({log})")
    return ended, len(failed)


def _write_report(
    sweep: SweepRecord, options: Options, parent: ParentRun | None
) -> tuple[Path | None, str]:
    """Write the report if requested and send it to MLflow. Return its path (None without a report),
    and the best configuration with its caveats as text (empty if it cannot be determined).
    """
    path: Path | None = None
    best = ""
    with report_errors_printed(sweep, sweep.folder.log):
        # scipy takes a second to import, and plotly another
        from sweep.record.results import read_results

        results = read_results(sweep, may_run=False)
        best = choose_best(sweep, results).text(sweep.spec.objective)
        if options.report:
            from sweep.tracking.publish_report import send_report, write_report

            path = write_report(sweep, results)
            if parent is not None:
                send_report(sweep, results, parent)
    return path, best


def _complete_mlflow(
    sweep: SweepRecord, parent: ParentRun | None, control: StopControl
) -> UserError | None:
    if parent is None:
        return None
    try:
        send_unsent(sweep, parent.uri)
        parent.reconcile(ended_trials(sweep))
        status = "KILLED" if control.stopped else "FINISHED"
        parent.finish(status)
    except StorageError as error:
        return error
    return None
