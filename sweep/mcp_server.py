"""The MCP server of ``sweep mcp``: verdicts for agents, over standard input and output.

Each tool runs a command of ``sweep`` with ``--json`` in a process of its own, so that nothing that
a command prints reaches the protocol. Without ``allow_run`` only tools are offered that read.
"""

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from loptune.errors import ConfigError, UserError
from loptune.extras import require
from sweep.gate.arm import ArmName
from sweep.gate.exit_status import EXIT_CODES

if TYPE_CHECKING:
    from mcp.server import MCPServer

_INSTRUCTIONS = """\
Decides with evidence whether a training run, a setting or a code change is better than another.
`judge` gives the verdict on runs that exist. A campaign (`gate_*`) keeps or discards changes that \
come one after the other, with a bound on false keeps over the campaign. Report differences \
with their interval and number of seeds; `undecided` is an answer. Never add seeds until a result \
pleases, and choose metric and baseline before you see results."""
_READS_ONLY = (
    " This server only reads. Someone who starts it with `sweep mcp --allow-run` lets it change "
    "campaigns and train."
)

Folder = Annotated[str, Field(description="folder of the campaign")]


@dataclass(frozen=True)
class Sweep:
    """The ``sweep`` command in a folder."""

    folder: Path

    def answer(self, *words: str) -> dict[str, Any]:
        """Return the JSON of a command with ``--json``, and its exit status.

        Raises:
            ConfigError: the command failed; the message is the command's error output.
        """
        line = [sys.executable, "-m", "sweep", *words]
        ended = subprocess.run(
            line,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode not in EXIT_CODES.values():
            raise ConfigError(
                f"`sweep {' '.join(words)}` failed with exit status {ended.returncode}",
                str(self.folder),
                ended.stderr.strip()[-4000:] or "it said nothing",
                code="tool-failed",
            )
        said: dict[str, Any] = json.loads(ended.stdout)
        return {"exit_status": ended.returncode, **said}


def make_server(folder: Path, *, allow_run: bool) -> "MCPServer":
    """Return the server.

    Args:
        folder: in which the commands run; paths of tools are relative to it.
        allow_run: whether tools are offered that change campaigns and train.

    Raises:
        MissingError: the package ``mcp`` is not installed.
    """
    require("mcp", "sweep mcp")
    from mcp.server import MCPServer

    instructions = _INSTRUCTIONS
    if not allow_run:
        instructions += _READS_ONLY
    server = MCPServer("loptune", instructions=instructions, log_level="WARNING")
    _add_readers(server, Sweep(folder))
    if allow_run:
        _add_writers(server, Sweep(folder))
    return server


def _tool(
    server: "MCPServer", *, reads_only: bool
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Return the decorator that offers a function as a tool, with our errors as its errors."""
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    def decorate(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> dict[str, Any]:
            try:
                return function(*args, **options)
            except UserError as error:
                raise ToolError(str(error)) from error

        hints = ToolAnnotations(read_only_hint=reads_only, destructive_hint=False)
        server.tool(annotations=hints)(call)
        return call

    return decorate


def _add_readers(server: "MCPServer", sweep: Sweep) -> None:
    """Add the tools that change nothing."""

    @_tool(server, reads_only=True)
    def judge(
        table: Annotated[str, Field(description="file, folder or pattern of runs")],
        by: Annotated[list[str], Field(description="columns that define a configuration")],
        score: Annotated[str, Field(description="column of the score")],
        seed: Annotated[str | None, Field(description="column of the seed")] = None,
        baseline: Annotated[
            list[str], Field(description="COLUMN=VALUE of the baseline, one an entry")
        ] = [],  # noqa: B006  the schema shows it
        mode: Literal["max", "min"] = "max",
        worthwhile: Annotated[float, Field(description="smallest gain that matters")] = 0.0,
    ) -> dict[str, Any]:
        """Give the verdict on runs of any program, from the files that it wrote: CSV, JSON Lines,
        TensorBoard, W&B, MLflow, Optuna, Trackio, verl and others.
        """
        words = ["judge", f"--by={','.join(by)}", f"--score={score}", f"--mode={mode}"]
        words += [f"--worthwhile={worthwhile}", "--json"]
        if seed is not None:
            words.append(f"--seed={seed}")
        if baseline:
            words.append(f"--baseline={','.join(baseline)}")
        with tempfile.TemporaryDirectory() as pages:
            said = sweep.answer(*words, f"--output={pages}", _operand(table))
        del said["report"]  # the page is gone
        return said

    @_tool(server, reads_only=True)
    def gate_status(campaign: Folder) -> dict[str, Any]:
        """Show a campaign: the kept changes, the open proposal's missing runs, the seed noise."""
        return sweep.answer("gate", "status", "--json", _operand(campaign))

    @_tool(server, reads_only=True)
    def status(
        name: Annotated[str, Field(description="name of the sweep")],
        runs_dir: Annotated[str, Field(description="folder of all runs")] = "runs",
    ) -> dict[str, Any]:
        """Show a sweep's trials, its best configuration, and the caveats."""
        return sweep.answer("status", f"--runs-dir={runs_dir}", "--json", _operand(name))

    @_tool(server, reads_only=True)
    def report(
        name: Annotated[str, Field(description="name of the sweep")],
        runs_dir: Annotated[str, Field(description="folder of all runs")] = "runs",
    ) -> dict[str, Any]:
        """State a sweep's verdict in sentences, with warnings; names the page of its report."""
        return read_report(sweep.folder / runs_dir, name)


def _add_writers(server: "MCPServer", sweep: Sweep) -> None:
    """Add the tools that change campaigns or train."""
    settings_text = "KEY=VALUE of changed settings, one an entry"

    @_tool(server, reads_only=False)
    def gate_start(
        campaign: Folder,
        worthwhile: Annotated[float, Field(gt=0, description="smallest gain that matters")],
        space: Annotated[
            str | None, Field(description="search space whose program runs; null: you record")
        ] = None,
        settings: Annotated[list[str], Field(description=settings_text)] = [],  # noqa: B006
        metric: Annotated[str | None, Field(description="name of the score")] = None,
        mode: Literal["max", "min"] | None = None,
    ) -> dict[str, Any]:
        """Start a campaign in a new folder. Measure its baseline first: see `needs`."""
        words = ["gate", "start", f"--worthwhile={worthwhile}", "--json"]
        for option, value in (("space", space), ("metric", metric), ("mode", mode)):
            if value is not None:
                words.append(f"--{option}={value}")
        return sweep.answer(*words, _operand(campaign), *map(_operand, settings))

    @_tool(server, reads_only=False)
    def gate_propose(
        campaign: Folder,
        settings: Annotated[list[str], Field(description=settings_text)] = [],  # noqa: B006
        command: Annotated[
            list[str] | None, Field(description="words of another command line")
        ] = None,
        revision: Annotated[str | None, Field(description="git revision to run")] = None,
        note: Annotated[str, Field(description="what is changed, for the record")] = "",
        run: Annotated[
            bool, Field(description="train what is needed, which may take long")
        ] = False,
    ) -> dict[str, Any]:
        """Propose a change of the baseline. The answer is keep, discard, or the runs it needs."""
        words = ["gate", "propose", "--json", f"--note={note}"]
        if revision is not None:
            words.append(f"--revision={revision}")
        if run:
            words.append("--run")
        words += [_operand(campaign), *map(_operand, settings)]
        if command:
            words += ["--command", *command]  # takes all words that follow
        return sweep.answer(*words)

    @_tool(server, reads_only=False)
    def gate_record(
        campaign: Folder,
        arm: ArmName,
        seed: int,
        score: Annotated[float | None, Field(description="null: the run failed")],
    ) -> dict[str, Any]:
        """Record the score of a run that `needs` asked for. A score is final."""
        text = "failed" if score is None else repr(score)
        # Behind `--`, a negative score is no option.
        return sweep.answer(
            "gate", "record", "--json", "--", _operand(campaign), arm, str(seed), text
        )

    @_tool(server, reads_only=False)
    def gate_recheck(
        campaign: Folder,
        run: Annotated[
            bool, Field(description="train what is needed, which may take long")
        ] = False,
    ) -> dict[str, Any]:
        """Compare the baseline with the first one on fresh seeds, when `recheck_due` is true."""
        words = ["gate", "recheck", "--json"]
        if run:
            words.append("--run")
        return sweep.answer(*words, _operand(campaign))


def _operand(text: str) -> str:
    """Return an operand of a command line.

    Raises:
        ConfigError: it would be read as an option.
    """
    if text.startswith("-"):
        raise ConfigError(
            f"{text} starts with a dash", "tool call", f"write ./{text}", code="tool-operand"
        )
    return text


def read_report(runs_dir: Path, name: str) -> dict[str, Any]:
    """Return a sweep's verdict in sentences, and the page of its report if it was written.

    Raises:
        MissingError: there is no such sweep.
        StorageError: a record is damaged.
    """
    from dashboards.pictures.verdict import verdict  # pandas and SciPy take a second to import
    from sweep.record.results import read_results
    from sweep.record.sweep_record import open_sweep

    sweep = open_sweep(runs_dir, name)
    results = read_results(sweep)
    page = sweep.folder.report / "report.html"
    return {
        "name": name,
        "sentences": list(verdict(results)),
        "warnings": list(results.warnings),
        "running": results.running,
        "page": str(page) if page.is_file() else None,
    }
