"""``trainer rehearse``: run a preset for GPUs at reduced size, on the CPU or on GPUs."""

import argparse
import importlib.util
import logging
import tempfile
from pathlib import Path

from loptune.errors import ConfigError
from loptune.terminal.arguments import count
from loptune.terminal.interrupt import defer_interrupt
from loptune.terminal.table import print_table
from trainer.config.extends import preset_specs
from trainer.config.schema import load_config

_logger = logging.getLogger(__name__)

_RANKS = 2


def add_rehearse(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer rehearse``."""
    parser.add_argument("spec", nargs="?", help="preset[:variant] or YAML file")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="e.g. parallel.zero_stage=3"
    )
    parser.add_argument("--all", action="store_true", help="rehearse every preset and variant")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    parser.add_argument(
        "--ranks", type=count, default=_RANKS, help=f"number of ranks (default: {_RANKS})"
    )


def carry_out_rehearse(arguments: argparse.Namespace) -> int:
    """Rehearse the named presets and print a table. Return 1 if any check failed."""
    if arguments.all and arguments.spec:
        raise ConfigError(
            f"--all rehearses every preset, and {arguments.spec} names one",
            "trainer rehearse",
            f"leave out --all, or {arguments.spec}",
            code="all-and-one",
        )
    if not arguments.all and not arguments.spec:
        raise ConfigError(
            "no preset is named",
            "trainer rehearse",
            "name one, for example trainer rehearse kk_3b; --all rehearses every preset",
            code="no-preset",
        )
    names = preset_specs() if arguments.all else [arguments.spec]
    configs = {name: load_config(name, arguments.overrides) for name in names}
    with defer_interrupt():  # torch takes seconds to import
        from trainer.parallel.device import local_device
        from trainer.rehearsal.rehearse import rehearse

    local_device(arguments.device)  # raises if this machine has no GPU
    engine = "vllm" if importlib.util.find_spec("vllm") else "transformers"
    _logger.info("presets that sample with vLLM use the %s engine here", engine)
    rehearsals = []
    with tempfile.TemporaryDirectory(prefix="loptune-rehearsal-") as folder:
        for rehearsal in rehearse(
            configs, Path(folder), engine=engine, device=arguments.device, ranks=arguments.ranks
        ):
            rehearsals.append(rehearsal)
            _logger.info("%s rehearsed: %d of %d", rehearsal.name, len(rehearsals), len(names))
    rows = [rehearsal.row() for rehearsal in rehearsals]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    return int(any(rehearsal.failed() for rehearsal in rehearsals))
