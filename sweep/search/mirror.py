"""``study.db``: the sweep as an Optuna study in SQLite. A copy; nothing reads it back.

``optuna-dashboard sqlite:///runs/NAME/study.db`` shows it, while the sweep runs too.
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from sweep.search.history import Configuration, outcome
from sweep.search.study import direction, frozen_trial, notes
from sweep.space.points import Space
from sweep.space.spec import SweepSpec
from trainer.errors import first_line

logger = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 1.0  # the driver waits no longer for a reader that holds the file


class StudyMirror:
    """Keeps the file equal to the configurations it is shown, or warns where it cannot.

    A session writes it anew and changes it in place from then on, so that a dashboard stays connected. Where that
    fails (it is damaged, locked or removed), a new file takes its place.
    """

    def __init__(self, path: Path, spec: SweepSpec, space: Space) -> None:
        self.path = path
        self._spec = spec
        self._space = space
        self._written: list[str] = []  # state in the file of each configuration
        self._storage: RDBStorage | None = None
        self._study: optuna.Study | None = None  # in the storage
        self._failed = False

    def sync(self, configurations: Sequence[Configuration]) -> None:
        """Bring the file up to date. A failure is logged and ends the copying, not the sweep."""
        if self._failed:
            return
        states = [outcome(configuration, self._spec.seeds).state for configuration in configurations]
        try:
            if not self._update(configurations, states):
                self._rewrite(configurations)
        except (OSError, SQLAlchemyError, OptunaError) as error:
            logger.warning("%s stays as it is, optuna-dashboard is out of date: %s", self.path, first_line(error))
            self._failed = True
            self.close()
        self._written = list(states)

    def close(self) -> None:
        """Close the file."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
            self._storage = self._study = None

    def _update(self, configurations: Sequence[Configuration], states: Sequence[str]) -> bool:
        """Write what has changed; False where the file cannot take it."""
        if self._study is None or not self.path.exists():
            return False
        changed = [
            configuration
            for configuration, state in zip(configurations, states, strict=True)
            if configuration.number >= len(self._written) or self._written[configuration.number] != state
        ]
        try:
            for configuration in changed:
                if configuration.number >= len(self._written):
                    self._study.add_trial(frozen_trial(self._spec, self._space, configuration))
                else:
                    self._tell(self._study, configuration)
        except (SQLAlchemyError, OptunaError) as error:
            logger.warning("%s: written anew (%s)", self.path, first_line(error))
            return False
        return True

    def _tell(self, study: optuna.Study, configuration: Configuration) -> None:
        found = outcome(configuration, self._spec.seeds)
        number = configuration.number
        # By its number: to list the trials of a long study takes longer than the rest of this.
        storage_id = study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number)
        trial = optuna.Trial(study, storage_id)
        for key, value in notes(configuration).items():
            trial.set_user_attr(key, value)
        if found.state == "COMPLETE":
            study.tell(number, found.score)
            return
        if found.state == "PRUNED" and found.score is not None:
            trial.report(found.score, found.step or 0)
        study.tell(number, state=TrialState[found.state])

    def _rewrite(self, configurations: Sequence[Configuration]) -> None:
        self.close()
        draft = self.path.with_name(f".{self.path.name}.new")
        _unlink_with_journal(draft)
        storage = _open(draft)
        study = optuna.create_study(study_name=self._spec.name, storage=storage, direction=direction(self._spec))
        for configuration in configurations:
            study.add_trial(frozen_trial(self._spec, self._space, configuration))
        storage.remove_session()
        storage.engine.dispose()
        # SQLite would roll a dead writer's journal back into the new file.
        _unlink_with_journal(self.path, keep_file=True)
        os.replace(draft, self.path)
        self._storage = _open(self.path)
        self._study = optuna.load_study(study_name=self._spec.name, storage=self._storage)


def _open(path: Path) -> RDBStorage:
    return RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": _LOCK_TIMEOUT_S}})


def _unlink_with_journal(path: Path, *, keep_file: bool = False) -> None:
    for suffix in ("-journal", "-wal", "-shm", *(() if keep_file else ("",))):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()
