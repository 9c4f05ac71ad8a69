"""``trainer serve``: a vLLM server for rollouts."""

import argparse
from typing import NoReturn

from loptune.terminal.arguments import port as port_number
from loptune.terminal.interrupt import defer_interrupt
from loptune.terminal.ui import check_port
from trainer.config.schema import load_config


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer serve``."""
    parser.add_argument("spec", help="preset or YAML file of the runs that will use the server")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="e.g. rollout.vllm.tensor_parallel=2",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; clients authenticate with LOPTUNE_SERVER_TOKEN",
    )
    parser.add_argument("--port", type=port_number, default=8000, help="default: 8000")
    parser.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        help="fraction of the GPU's memory (default: 0.9)",
    )


def carry_out_serve(arguments: argparse.Namespace) -> NoReturn:
    """Carry out ``trainer serve``."""
    config = load_config(arguments.spec, arguments.overrides)
    check_port(arguments.port, f"trainer serve {arguments.spec}", arguments.host)
    with defer_interrupt():
        from trainer.rollouts.vllm.command import serve  # torch takes seconds to import

    serve(config, arguments.host, arguments.port, arguments.gpu_memory_utilization)
