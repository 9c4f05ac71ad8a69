"""``trainer rehearse``: run a preset for GPUs at reduced size, on the CPU or on GPUs."""

import importlib.util
import logging
from typing import Annotated, Literal

from loptune.errors import ConfigError
from loptune.section import Count
from loptune.temporary import temporary_folder
from loptune.terminal.commands import Option, printing_command
from loptune.terminal.interrupt import defer_interrupt
from loptune.terminal.table import print_table
from trainer.commands.arguments import Overrides
from trainer.config.extends import preset_specs
from trainer.config.schema import load_config

_logger = logging.getLogger(__name__)


def rehearse(
    spec: Annotated[str | None, Option("preset[:variant] or YAML file")] = None,
    overrides: Overrides = (),
    *,
    all: Annotated[bool, Option("rehearse every preset and variant")] = False,
    device: Annotated[Literal["cpu", "cuda"], Option("where to rehearse")] = "cpu",
    ranks: Annotated[Count, Option("number of ranks")] = 2,
) -> int:
    """Run a GPU preset at reduced size, for example on two CPU ranks. Prints a table of the checks.

    Returns:
        Exit status: 1 if any check failed.

    Raises:
        UserError: no preset is given, or its configuration is wrong.
    """
    if all and spec:
        raise ConfigError(
            f"--all cannot be combined with {spec}",
            "trainer rehearse",
            f"leave out --all, or {spec}",
            code="all-and-one",
        )
    if not all and not spec:
        raise ConfigError(
            "no preset given",
            "trainer rehearse",
            "choose one, for example trainer rehearse kk_3b; --all rehearses every preset",
            code="no-preset",
        )
    names = [spec] if spec else preset_specs()
    configs = {name: load_config(name, overrides) for name in names}
    with defer_interrupt():  # torch takes seconds to import
        from trainer.parallel.device import local_device
        from trainer.rehearsal.rehearse import rehearse as rehearse_all

    local_device(device)  # raises if this machine has no GPU
    engine = "vllm" if importlib.util.find_spec("vllm") else "transformers"
    _logger.info("presets that sample with vLLM use the %s engine here", engine)
    rehearsals = []
    with temporary_folder("rehearsal") as folder:
        for rehearsal in rehearse_all(configs, folder, engine=engine, device=device, ranks=ranks):
            rehearsals.append(rehearsal)
            _logger.info("%s rehearsed: %d of %d", rehearsal.name, len(rehearsals), len(names))
    rows = [rehearsal.row() for rehearsal in rehearsals]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    return int(any(rehearsal.failed() for rehearsal in rehearsals))


COMMANDS = {"rehearse": printing_command(rehearse, "trainer rehearse kk_3b:lopti")}
