"""``sweep mcp``: verdicts for agents, by the Model Context Protocol."""

import argparse
from pathlib import Path

from loptune.terminal.arguments import Commands


def add_commands(commands: Commands) -> None:
    """Add ``sweep mcp``."""
    mcp = commands.add_parser(
        "mcp",
        help="serve verdicts to agents over standard input (MCP)",
        description="Serve verdicts to agents by the Model Context Protocol, over standard input "
        "and output, until the client closes them. Needs `pip install 'loptune[mcp]'`.",
    )
    mcp.add_argument(
        "--allow-run",
        action="store_true",
        help="also offer tools that change campaigns and train (default: tools that read)",
    )
    mcp.set_defaults(command=_mcp)


def _mcp(arguments: argparse.Namespace) -> int:
    from sweep.mcp_server import make_server

    make_server(Path.cwd(), allow_run=arguments.allow_run).run()
    return 0
