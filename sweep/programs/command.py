"""Run any command line or Python function as the program of a sweep: docs/guides/any_trainer.md."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError, model_serializer, model_validator

from dashboards.trial import FIELDS
from loptune.errors import ConfigError, MissingError, shortened
from loptune.section import Count, Section, refusal
from loptune.yaml_document import YamlDocument, nearest
from sweep.programs.base import (
    ABSENT,
    Advice,
    Assignment,
    Overrides,
    Program,
    ResourcesSpec,
    Values,
    searched_and_set,
    seed_searched,
)
from sweep.programs.placeholders import check_words, fill, named_keys
from sweep.programs.process import OF_RECORD, CommandRun
from sweep.programs.python_modules import find_module, is_importable, run_modules
from sweep.programs.warm_interpreter import is_warmable
from trainer.config.tracking import TrackingConfig
from trainer.tracking.inputs import module_files
from trainer.tracking.writers import check_installed

_SCRIPT = re.compile(r"[^\s=${},:]+\.(py|sh)")  # an argument that is the name of a script
_INSTALL_IT = "install it, or write its path"
_SEED = "seed"  # key of the trial's seed in its overrides
_RESERVED = ("out", "command", "tracking")  # names reserved for the trial record
# key below objective -> role of its metric
_ROLES = {"metric": "the objective", "guards": "a guard", "second": "the second objective"}


class CommandConfig(Section):
    """The configuration of one trial."""

    command: list[str]
    values: dict[str, Any]
    seed: int
    tracking: TrackingConfig
    preload: list[str] = Field([])

    @model_serializer
    def _record(self) -> dict[str, Any]:
        return {
            **self.values,
            "command": self.command,
            "tracking": self.tracking.model_dump(mode="json"),
        }

    def words(self, folder: Path) -> list[str]:
        """Return the command line of the trial with this folder."""
        return fill(self.command, {**self.values, "out": str(folder)})


class CommandProgram(Program):
    """A command line as a program. Its inputs and outputs are described in
    docs/guides/any_trainer.md.
    """

    space_key = "external"
    held_out_instead = True
    forecast_needs = "run this sweep, and plan again when the first trial is done"

    command: list[str] = Field([])
    """command line as a list; {KEY} is replaced by a value, {out} by the trial's folder"""
    function: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """module:function(config, report), instead of a command"""
    defaults: dict[str, Any] = Field({})
    """searchable keys -> default values"""
    seeds: list[str] = Field([_SEED])
    """keys that are set to the trial's seed"""
    held_out: dict[str, Any] = Field({})
    """key -> value in trials of `sweep confirm`"""
    planned: Count | None = Field(None, alias="evaluations")
    """evaluations per trial, for `sweep plan` and early stopping"""
    inputs: list[str] = Field([])
    """files other than scripts that must not change during the sweep"""
    preload: list[str] = Field([])
    """modules, or module:name, that a rank imports once for all its trials: [trl:GRPOTrainer]"""
    tracking: TrackingConfig = TrackingConfig()
    """MLflow settings, as in the configuration of a run"""

    @model_validator(mode="after")
    def _check(self) -> "CommandProgram":
        if bool(self.command) == bool(self.function):
            raise refusal(
                "command-or-function",
                "exactly one of command and function must be set",
                "write command: [python, train.py], or function: module:function",
            )
        clash = {*self.defaults, *self.held_out} & {_SEED, *self.seeds, *_RESERVED}
        for key in clash | {*self.seeds} & {*_RESERVED}:
            raise refusal(
                "reserved-key",
                f"{key} is set by loptune for each trial",
                "remove it from program.defaults, or rename it",
            )
        check_words(self.command, self._named, self._texts)
        if self.preload and not is_warmable(self._words):
            raise refusal(
                "preload-without-python",
                "program.preload needs a command that starts with `python SCRIPT` or "
                "`python -m MODULE`, or a function",
                "remove program.preload, or start the command with python",
            )
        return self

    @property
    def _places(self) -> set[str]:
        """The keys that are used in the command."""
        return named_keys(self.command, self._named)

    @property
    def _named(self) -> list[str]:
        """The keys that the command can use."""
        return [*self.defaults, *self.seeds, "out"]

    @property
    def _texts(self) -> list[str]:
        """The keys whose values may be strings, lists or mappings."""
        defaults = {**self.defaults, **self.held_out}
        return [key for key, value in defaults.items() if not isinstance(value, int | float)]

    @property
    def tracking_settings(self) -> TrackingConfig:
        """MLflow settings of the trials."""
        return self.tracking

    def with_tracking(self, **changes: Any) -> "CommandProgram":
        """Return the program with changed `tracking_settings`."""
        return self.model_copy(update={"tracking": self.tracking.model_copy(update=changes)})

    def resolved(self, folder: Path, document: YamlDocument) -> "CommandProgram":
        """Return the program unchanged, or raise ConfigError if the held-out values of a search
        equal the defaults.
        """
        if self.is_held_out and not document.data.get("confirms"):
            raise document.error(
                "program.held_out has no effect: its values are the defaults",
                ("program", "held_out"),
                "set it to the held-out data, or remove it",
                code="held-out-changes-nothing",
            )
        return self

    def keys(self) -> list[str]:
        """Return the keys with defaults."""
        return list(self.defaults)

    def has(self, key: str) -> bool:
        """Return whether a key has a default, or is set for each trial."""
        return key in self.defaults or key in (_SEED, *self.seeds)

    def check_key(self, key: str, document: YamlDocument) -> None:
        """Raise ConfigError for the seed, keys of `program.held_out` and reserved column names."""
        where = document.where(("parameters", key))
        if key not in self.defaults:
            raise seed_searched(key, where)
        if key in self.held_out:
            raise searched_and_set(
                key, "set by program.held_out", where, code="searched-and-held-out"
            )
        if key in FIELDS:
            raise ConfigError(
                f"{key} is a reserved column name",
                where,
                f"rename it; reserved: {', '.join(FIELDS)}",
                key=key,
                code="reserved-key",
            )

    def check_metric(self, metric: str, key: str, searched: Values, document: YamlDocument) -> None:
        """Raise ConfigError for the reserved names; the command may log any other metric."""
        if metric in ("", "step", *OF_RECORD):
            raise document.error(
                f"{metric!r} cannot be {_ROLES[key]}",
                ("objective", key),
                "choose a metric that the command logs",
                code="invalid-objective",
            )

    def check_machine(
        self,
        searched: Values,
        resources: ResourcesSpec,
        max_concurrent: int | None,
        document: YamlDocument,
    ) -> None:
        """Raise ConfigError for more than one worker, and for a fractional number of GPUs
        above 1.
        """
        if resources.workers_per_trial > 1:
            raise document.error(
                "a command has to start its ranks itself",
                ("resources", "workers_per_trial"),
                "set only gpus_per_trial, and let torchrun or accelerate start the ranks",
                code="several-workers",
            )
        if resources.gpus_per_trial > 1 and resources.gpus_per_trial % 1:
            raise document.error(
                f"a trial cannot have {resources.gpus_per_trial:g} GPUs",
                ("resources", "gpus_per_trial"),
                "use an integer",
                code="fractional-gpus",
            )

    def check_early(
        self, searched: Values, resources: ResourcesSpec, metrics: Sequence[str]
    ) -> None:
        """Check the command, its scripts and inputs, and the trackers it reports to.

        Raises:
            MissingError: a file, the command or a module is missing.
            ConfigError: the package of a tracker is not installed, or the module of the function
                has a syntax error or does not contain the function.
        """
        check_installed(self)
        missing = [name for name in [*self._scripts, *self.inputs] if not Path(name).is_file()]
        if self.function:
            modules = [path for path, role in self.files(searched) if role == "program"]
            if not modules:
                missing.append(f"the module of {self.function}")
            for path in modules:
                _check_function(path, self.function.partition(":")[2])
        if missing:
            raise MissingError(
                f"file not found: {missing[0]}",
                str(Path.cwd()),
                "start the sweep in the folder that contains it",
                code="no-file",
            )
        program = self._words[0]
        if shutil.which(program) is None:
            raise MissingError(
                f"command not found: {program}", "program.command", _INSTALL_IT, code="no-command"
            )
        for module in run_modules(self.command):
            if module.is_checkable and not find_module(module.name, Path.cwd()):
                raise _no_module(module.name, "program.command")
        for name in self.preload:
            if not is_importable(name.partition(":")[0], Path.cwd()):
                raise _no_module(name, "program.preload")

    @property
    def _scripts(self) -> list[str]:
        return [word for word in self.command if _SCRIPT.fullmatch(word)]

    @property
    def _words(self) -> list[str]:
        if self.function:
            return [sys.executable, "-P", "-m", "sweep.programs.call", self.function]
        program, *arguments = self.command
        if program == "python":
            # Use the interpreter that runs the sweep, whether or not its environment is activated.
            program = sys.executable
        return [program, *arguments]

    def with_settings(self, settings: Overrides, command: Sequence[str] | None) -> "CommandProgram":
        """Return the program with other `defaults`, and with a different command line if one is
        given.

        Raises:
            ConfigError: a setting is not listed in `program.defaults`.
        """
        for key, value in settings.items():
            if key not in self.defaults:
                raise ConfigError(
                    f"the program has no setting {key}",
                    f"{key}={value}",
                    nearest(key, self.defaults) or "list it in program.defaults",
                    key=key,
                    code="unknown-setting",
                )
        changes: dict[str, Any] = {"defaults": {**self.defaults, **settings}}
        if command:
            changes["command"] = list(command)
        return self.model_copy(update=changes)

    def values(self, overrides: Overrides, keys: Sequence[str]) -> Overrides:
        """Return the values of keys: overrides, else defaults."""
        values = {**self.defaults, **overrides}
        return {key: values.get(key, ABSENT) for key in keys}

    def configure(self, overrides: Overrides) -> CommandConfig:
        """Return the configuration of a trial: each value has its default's type.

        Raises:
            ConfigError: a value has a different type; its key is the ``key`` of the error.
        """
        changes = dict(overrides)
        seed = int(changes.pop(_SEED, 0))
        for key, value in changes.items():
            default = self.defaults[key]
            kind = Any if default is None else type(default)
            try:
                TypeAdapter(kind).validate_python(value, strict=True)
            except ValidationError:
                raise ConfigError(
                    f"{key} is {shortened(repr(value), 80)}, but its default "
                    f"{shortened(repr(default), 80)} has a different type",
                    f"key {key}",
                    _hint_of_type(default, value),
                    key,
                    code="another-type",
                ) from None
        values = {**self.defaults, **changes, **dict.fromkeys(self.seeds, seed)}
        return CommandConfig(
            command=self._words,
            values=values,
            seed=seed,
            tracking=self.tracking,
            preload=self.preload,
        )

    def save(self, overrides: Overrides, path: Path) -> None:
        """Write all values as JSON, which is also valid YAML."""
        path.write_text(
            json.dumps(self.configure(overrides).values, indent=1) + "\n", encoding="utf-8"
        )

    def launch_command(self, overrides: Overrides, path: Path, workers: int) -> str:
        """Return the command line with its environment, for a folder named after the file."""
        config = self.configure(overrides)
        folder = path.resolve().with_name(f"{path.stem}-out")
        environment = {"CONFIG": path.resolve(), "SEED": config.seed, "OUT": folder, "RESUME": 0}
        set_ = [f"LOPTUNE_{name}={shlex.quote(str(value))}" for name, value in environment.items()]
        return (
            f"mkdir -p {shlex.quote(str(folder))} && {' '.join(set_)} "
            f"{shlex.join(config.words(folder))}"
        )

    def start(self, assignment: Assignment) -> CommandRun:
        """Prepare the trial; its process starts with the first call of `train_until_evaluation`."""
        return CommandRun(assignment)

    @property
    def _name(self) -> str:
        return self.function or Path([*self._scripts, *self.command][0]).name

    def rule_of(self, resolved: Overrides) -> tuple[str, str]:
        """Return an empty algorithm, because all trials run the same program. The update rule is
        named by the values that are strings or booleans, or by the command if there are none.
        """
        chosen = []
        for key, value in resolved.items():
            if isinstance(value, str | bool):
                chosen.append(f"{key} {value}")
        return "", ", ".join(chosen) or self._name

    def setting(self) -> tuple[str, str]:
        """Return the name of the command, and "your own command" as the task."""
        return self._name, "your own command"

    def files(self, searched: Values) -> Iterator[tuple[Path, str]]:
        """Yield the modules of the function or of ``python -m``, the scripts, and the files in
        ``inputs``.
        """
        if self.function:
            yield from module_files(self.function.partition(":")[0], "program", Path.cwd())
        for module in run_modules(self.command):
            name = find_module(module.name, Path.cwd()) or module.name
            yield from module_files(name, "program", Path.cwd())
        for script in self._scripts:
            yield Path(script).resolve(), "program"
        for file in self.inputs:
            yield Path(file).resolve(), "input"

    def held_out_run(self, metric: str, test: str | None) -> "CommandProgram":
        """Return the program with the values of `held_out`, if there are any.

        Raises:
            ConfigError: ``test`` is set, which only loptune's own trainer can use.
        """
        if test is not None:
            raise ConfigError(
                "--test works only with loptune's own trainer",
                "command line, --test",
                "set program.held_out before the sweep starts",
                code="test-of-command",
            )
        return self.model_copy(update={"defaults": {**self.defaults, **self.held_out}})

    @property
    def is_held_out(self) -> bool:
        """Whether the program runs with the values of `held_out`."""
        return bool(self.held_out) and self.held_out.items() <= self.defaults.items()

    def count_evaluations(self, possible: Values) -> int | None:
        """Return the space's `program.evaluations`; None if it is not set."""
        return self.planned

    def advice(self, searched: Values) -> Iterator[Advice]:
        """Yield advice on searched and held-out keys that are missing from a command that uses
        other keys.
        """
        for key in {**searched, **self.held_out}:
            if self._places and key not in self._places:
                yield Advice(
                    f"the command does not use {key}: it is only in the file $LOPTUNE_CONFIG",
                    "program.command",
                    f"put {{{key}}} into the command, unless the program reads that file",
                )

    def scores_like(self, other: Program) -> bool:
        """Return whether another sweep runs the same command with the same defaults."""
        apart = {"tracking", "inputs", "held_out", "preload"}
        return isinstance(other, CommandProgram) and self.model_dump(
            exclude=apart
        ) == other.model_dump(exclude=apart)


def _no_module(name: str, key: str) -> MissingError:
    return MissingError(f"no module {name}", key, _INSTALL_IT, key, code="no-module")


def _hint_of_type(default: Any, value: Any) -> str:
    """Return a hint on how to give a default and a value the same type."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, bool):
        return "write true or false, or change the default"
    if isinstance(default, int) and is_number:
        return f"write the default as {float(default)}, or search integers with int or logint"
    if isinstance(default, float) and isinstance(value, str):
        return "write a number without quotes"
    if isinstance(default, str):
        return f"put the value in quotes, or write the default as {json.dumps(value)}"
    return f"write a value of type {type(default).__name__}, or change the default"


def _check_function(path: Path, name: str) -> None:
    """Check that a file compiles and contains the function's name, without running it.

    Raises:
        ConfigError: the file has a syntax error, or does not contain the name.
    """
    source = path.read_text(encoding="utf-8", errors="replace")
    try:
        compile(source, path, "exec")
    except SyntaxError as error:
        where = f"{path}:{error.lineno}"
        raise ConfigError(
            f"{path.name}: {error.msg}", where, "fix the syntax error", code="syntax-error"
        ) from None
    if not re.search(rf"\b{name}\b", source):
        raise ConfigError(
            f"{path.name} has no {name}", str(path), "fix program.function", code="no-function"
        )
