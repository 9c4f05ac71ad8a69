"""Trace one training step: list the modules and functions of our packages that it runs.

    python -m research.step_trace              # the preset tiny_kk
    python -m research.step_trace --functions  # also print the name of every function

The model is loaded and two steps are trained before the traced one, so that caches are filled. Only
`Trainer.training_step` is traced: sampling, scoring, advantages, passes, update and metrics,
without evaluation, tracking and checkpoints. Threads that it starts are traced; the processes that
score completions are not.
"""

import argparse
import functools
import statistics
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from trainer.config.schema import apply_overrides, load_config
from trainer.loop import Trainer
from trainer.types import RunContext

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("trainer", "rewards")


class Trace:
    """The code of every function of our packages that is called while `recording` is true.

    Create the trace before the threads that it should cover: only the current thread and
    threads that start afterwards are profiled.
    """

    def __init__(self) -> None:
        self.recording = False
        self._called: set[CodeType] = set()
        sys.setprofile(self._record)
        threading.setprofile(self._record)

    @property
    def codes(self) -> set[CodeType]:
        """The code of the functions called so far."""
        return {code for code in self._called if module_of(code, _PACKAGES)}

    def end(self) -> None:
        """Stop profiling this thread and threads that start later."""
        self.recording = False
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _record(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.recording and event == "call":
            self._called.add(frame.f_code)


@functools.cache
def module_of(code: CodeType, packages: tuple[str, ...]) -> str:
    """Return the dotted module of a function in these packages of ours, or an empty string."""
    try:
        path = Path(code.co_filename).resolve().relative_to(_ROOT)
    except ValueError:
        return ""
    is_ours = path.parts[0] in packages
    return ".".join(path.with_suffix("").parts) if is_ours else ""


def is_named(code: CodeType) -> bool:
    """Return whether the code is a named function, not a lambda, comprehension or class body."""
    return not code.co_name.startswith("<")


def _lines(code: CodeType) -> int:
    """Return the number of source lines of a function with instructions."""
    return len({line for _, _, line in code.co_lines() if line is not None})


def main() -> None:
    """Print the modules and functions of one step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--functions", action="store_true", help="name every function")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the configuration")
    arguments = parser.parse_args()
    overrides = dict(text.split("=", 1) for text in arguments.overrides)
    config = apply_overrides(load_config("tiny_kk"), overrides)
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace()
        trainer = Trainer(config, RunContext.of(Path(folder) / "run"))
        try:
            for _ in range(2):
                trainer.training_step()
            trace.recording = True
            trainer.training_step()
            trace.end()
        finally:
            trainer.close()
    functions: dict[str, list[CodeType]] = defaultdict(list)
    for code in trace.codes:
        if is_named(code):
            functions[module_of(code, _PACKAGES)].append(code)
    for module in sorted(functions):
        print(f"{len(functions[module]):4d}  {module}")
        if arguments.functions:
            for code in sorted(functions[module], key=lambda code: code.co_firstlineno):
                print(f"        {code.co_qualname}")
    named = [code for codes_of_module in functions.values() for code in codes_of_module]
    median = statistics.median(map(_lines, named))
    print(f"{len(functions)} modules, {len(named)} functions, median of {median:g} lines")


if __name__ == "__main__":
    main()
