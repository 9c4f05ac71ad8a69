import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.lopti_step import PHASES, Meter, medians, report


def test_a_meter_takes_processor_seconds_and_operations_of_a_phase():
    meter = Meter()
    Meter.counter = FlopCounterMode(display=False)
    with Meter.counter:
        with meter("update"):
            torch.ones(3, 4) @ torch.ones(4, 5)
        with meter("rollout"):
            time.sleep(0.05)
    Meter.counter = None
    assert meter.flops == {"update": 2 * 3 * 4 * 5, "rollout": 0}
    assert meter.cpu["rollout"] < 0.05 <= meter.seconds["rollout"]
    assert Meter.last is meter


def test_the_report_by_hand(capsys):
    steps = [dict.fromkeys(PHASES, seconds) for seconds in (1.0, 4.0, 2.0)]
    assert medians(steps) == dict.fromkeys(PHASES, 2.0)
    plain = {"cpu": medians(steps), "wall": medians(steps), "flops": dict.fromkeys(PHASES, 2e9)}
    lopti = {name: {phase: 1.5 * value for phase, value in of.items()} for name, of in plain.items()}
    report({"plain": plain, "Lopti": lopti}, {"plain": steps, "Lopti": steps}, "title")
    printed = capsys.readouterr().out
    assert "1.00, 1.00, 1.00" in printed
    row = next(line for line in printed.splitlines() if line.startswith("| update"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["update", "2.000", "3.000", "1.50", "2.000", "3.000", "1.50", "2.00", "3.00", "1.50"]
