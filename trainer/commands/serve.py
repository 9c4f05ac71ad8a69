"""``trainer serve``: a vLLM server for rollouts."""

from typing import Annotated

from loptune.section import Fraction, Port
from loptune.terminal.commands import Option, printing_command
from loptune.terminal.interrupt import defer_interrupt
from loptune.terminal.ui import check_port
from trainer.commands.arguments import Overrides, Spec
from trainer.config.schema import load_config


def serve(
    spec: Spec,
    overrides: Overrides = (),
    *,
    host: Annotated[
        str, Option("address to listen on; clients authenticate with LOPTUNE_SERVER_TOKEN")
    ] = "127.0.0.1",
    port: Annotated[Port, Option("port to listen on")] = 8000,
    gpu_memory_utilization: Annotated[Fraction, Option("fraction of the GPU's memory")] = 0.9,
) -> int:
    """Start a vLLM server for runs with rollout.vllm.mode=server. It serves the model of these runs
    and receives their weights after every step.

    Raises:
        UserError: the settings are wrong, the port is taken, or vLLM is missing.
    """
    config = load_config(spec, overrides)
    check_port(port, host)
    with defer_interrupt():
        from trainer.rollouts.vllm.command import serve as serve_model  # torch is slow to import

    serve_model(config, host, port, gpu_memory_utilization)


COMMANDS = {"serve": printing_command(serve, "trainer serve kk_3b rollout.vllm.tensor_parallel=2")}
