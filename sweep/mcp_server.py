"""The MCP server of ``sweep mcp``: the commands as tools for agents, over standard input and
output.

A tool is a command's function: its schema follows from the signature, and its answer is the
command's ``--json``. Without ``allow_run`` only read-only tools are offered.
"""

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from loptune.errors import ConfigError, UserError
from loptune.extras import require
from loptune.terminal.arguments import Commands
from loptune.terminal.commands import Argument, Command, Option, add_command
from loptune.terminal.table import json_text
from loptune.yaml_document import nearest
from sweep.commands.gate import COMMANDS as GATE
from sweep.commands.judge import JUDGE
from sweep.commands.status import STATUS

if TYPE_CHECKING:
    from mcp.server import MCPServer

TIME_LIMIT_S = 120.0  # time limit of read-only tools
_INSTRUCTIONS = """\
Decides with evidence whether a training run, a setting or a code change is better than another.
`judge` gives the verdict on runs that exist. A campaign (`gate_*`) keeps or discards \
each of a sequence of changes, with a bound on the fraction of false keeps. Report differences \
with their interval and number of seeds; `undecided` is an answer. Do not add seeds until the \
result is favorable, and choose metric and baseline before you see results."""
_ANNOTATED: Any = Annotated  # for types that are known only at run time
_READS_ONLY = (
    " This server is read-only. To let it change campaigns and train, a user must start it "
    "with `sweep mcp --allow-run`."
)


def add_commands(commands: Commands) -> None:
    """Add ``sweep mcp``."""
    add_command(commands, MCP)


def mcp(
    *,
    allow_run: Annotated[
        bool, Option("also offer tools that change campaigns and train (default: read-only tools)")
    ] = False,
    allow_outside: Annotated[
        bool,
        Option("let tools read and write outside of the current folder (default: only inside it)"),
    ] = False,
) -> None:
    """Serve verdicts to agents (MCP). The server uses the Model Context Protocol on standard input
    and output, until the client closes them. Needs ``pip install 'loptune[mcp]'``.

    Raises:
        MissingError: the package ``mcp`` is not installed.
    """
    make_server(allow_run=allow_run, allow_outside=allow_outside).run()


@dataclass(frozen=True)
class Tool:
    """A command as a tool.

    Args:
        name: the name of the tool.
        command: the command.
        reads_only: whether the tool changes nothing.
        left_out: parameters that tools do not pass.
    """

    name: str
    command: Command
    reads_only: bool
    left_out: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[Argument]:
        """The parameters of the tool."""
        return [each for each in self.command.arguments if each.name not in self.left_out]

    @property
    def signature(self) -> inspect.Signature:
        """The tool's keyword-only parameters, with their descriptions."""
        parameters = []
        for argument in self.arguments:
            help_field = Field(description=argument.option.help)
            parameters.append(
                inspect.Parameter(
                    argument.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=_ANNOTATED[argument.annotation, help_field],
                    default=argument.default,
                )
            )
        return inspect.Signature(parameters, return_annotation=dict[str, Any])

    def answer(self, values: dict[str, Any]) -> dict[str, Any]:
        """Call the command's function, and return the keys of ``--json`` with the exit status."""
        result = self.command.function(**values)
        assert self.command.fields is not None
        fields = json.loads(json_text(self.command.fields(result)))
        return {"exit_status": self.command.exit_code(result), **fields}


def report(
    name: Annotated[str, Option("name of the sweep")],
    *,
    runs_dir: Annotated[Path, Option("folder of all runs", is_path=True)] = Path("runs"),
) -> dict[str, Any]:
    """State a sweep's verdict in sentences and numbers, also per benchmark and guard, with warnings
    and the path of its report page.

    Raises:
        MissingError: there is no such sweep.
        StorageError: a record is damaged or missing.
        ConfigError: the name is invalid, or the search space was edited and is no longer valid.
    """
    from dashboards.judging import Judgement  # pandas and SciPy take a second to import
    from sweep.record.results import read_results
    from sweep.record.sweep_record import open_sweep

    sweep = open_sweep(runs_dir, name)
    results = read_results(sweep)
    page = sweep.folder.report / "report.html"
    return {
        "name": name,
        **Judgement.of(results).fields(),
        "warnings": list(results.warnings),
        "running": results.running,
        "page": str(page) if page.is_file() else None,
    }


def _report_command() -> Command:
    return Command(function=report, show=print, fields=dict, example="sweep report NAME")


TOOLS = (
    Tool("judge", JUDGE, reads_only=True, left_out=("output", "store")),
    Tool("status", STATUS, reads_only=True),
    Tool("report", _report_command(), reads_only=True),
    Tool("gate_status", GATE["status"], reads_only=True),
    Tool("gate_log", GATE["log"], reads_only=True),
    Tool("gate_import", GATE["import"], reads_only=True),
    Tool("gate_start", GATE["start"], reads_only=False),
    Tool("gate_propose", GATE["propose"], reads_only=False),
    Tool("gate_record", GATE["record"], reads_only=False),
    Tool("gate_recheck", GATE["recheck"], reads_only=False),
    Tool("gate_run", GATE["run"], reads_only=False),
    Tool("gate_withdraw", GATE["withdraw"], reads_only=False),
)


def make_server(
    *, allow_run: bool, allow_outside: bool = False, time_limit_s: float = TIME_LIMIT_S
) -> "MCPServer":
    """Return the server. Its tools read and write in the current folder.

    Args:
        allow_run: whether to offer tools that change campaigns and train.
        allow_outside: whether tools may read and write outside of the current folder.
        time_limit_s: seconds after which a read-only tool fails.

    Raises:
        MissingError: the package ``mcp`` is not installed.
    """
    require("mcp", "sweep mcp")
    from mcp.types import ToolAnnotations

    instructions = _INSTRUCTIONS
    if not allow_run:
        instructions += _READS_ONLY
    server = _strict_server(instructions)
    for tool in TOOLS:
        if tool.reads_only or allow_run:
            server.add_tool(
                _call_of(tool, allow_outside=allow_outside, time_limit_s=time_limit_s),
                name=tool.name,
                description=tool.command.description,
                # Tools that change something also run programs in the folder, which may do
                # anything.
                annotations=ToolAnnotations(
                    read_only_hint=tool.reads_only, destructive_hint=not tool.reads_only
                ),
            )
    return server


def _strict_server(instructions: str) -> "MCPServer":
    """Return a server, still without tools, that rejects arguments that a tool does not have. The
    library would drop them, and the tool would answer a different question from the one asked.
    """
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    class StrictServer(MCPServer):
        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            for tool in TOOLS:
                if tool.name == name:
                    try:
                        _check_names(tool, arguments)
                    except UserError as error:
                        raise ToolError(str(error)) from error
            return await super().call_tool(name, arguments, context)

    return StrictServer("loptune", instructions=instructions, log_level="WARNING")


def _check_names(tool: Tool, values: dict[str, Any]) -> None:
    """Reject arguments that a tool does not have.

    Raises:
        ConfigError: an argument is unknown; the error suggests the nearest argument.
    """
    names = [argument.name for argument in tool.arguments]
    for name in values:
        if name not in names:
            raise ConfigError(
                f"{tool.name} has no argument {name}",
                f"tool {tool.name}",
                nearest(name, names),
                key=name,
                code="no-argument",
            )


def _call_of(tool: Tool, *, allow_outside: bool, time_limit_s: float) -> Callable[..., Any]:
    """Return the function that a tool calls. It raises `ToolError` for loptune's errors, at the
    time limit, and if it is interrupted. Unless ``allow_outside``, it rejects paths outside of the
    current folder.
    """
    import anyio
    from mcp.server.mcpserver.exceptions import ToolError

    async def call(**values: Any) -> dict[str, Any]:
        try:
            if not allow_outside:
                _check_inside(tool, values)
            # A tool that trains takes as long as its runs.
            with anyio.fail_after(time_limit_s if tool.reads_only else None):
                return await anyio.to_thread.run_sync(
                    functools.partial(tool.answer, values), abandon_on_cancel=True
                )
        except UserError as error:
            raise ToolError(str(error)) from error
        except TimeoutError as error:
            raise ToolError(str(_timed_out(tool, time_limit_s))) from error
        except KeyboardInterrupt as error:
            raise ToolError("interrupted; repeat the call to continue") from error

    call.__signature__ = tool.signature  # type: ignore[attr-defined]
    return call


def _timed_out(tool: Tool, time_limit_s: float) -> UserError:
    return ConfigError(
        f"no answer within {time_limit_s:g} s",
        f"tool {tool.name}",
        "read fewer files, or run the command in a shell",
        code="tool-time-out",
    )


def _check_inside(tool: Tool, values: dict[str, Any]) -> None:
    """Reject paths outside of the current folder.

    Raises:
        ConfigError: a path leads out of the folder, possibly through a link.
    """
    folder = Path.cwd().resolve()
    for argument in tool.arguments:
        value = values.get(argument.name)
        if not argument.option.is_path or not value:
            continue
        for path in value if argument.is_list else [value]:
            if (folder / path).resolve().is_relative_to(folder):
                continue
            raise ConfigError(
                f"{path} is outside of the server's folder",
                f"tool {tool.name}, {argument.name}",
                f"pass a path inside {folder}, or start the server with `sweep mcp "
                "--allow-outside`",
                key=argument.name,
                code="outside-folder",
            )


MCP = Command(function=mcp, show=lambda _: None, fields=None, example="sweep mcp --allow-run")
