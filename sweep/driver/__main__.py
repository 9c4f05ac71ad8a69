"""``python -m sweep.driver SETTINGS``: run the batches on standard input (`sweep.driver.pool`)."""

import sys

from loptune.terminal.logs import set_up_logging
from loptune.terminal.main import run_main
from sweep.trials.cluster import prepare_environment

if __name__ == "__main__":
    set_up_logging("normal")
    prepare_environment(None)  # before Ray is imported
    from sweep.driver.pool import serve

    sys.exit(run_main(lambda: serve(sys.argv[1])))
