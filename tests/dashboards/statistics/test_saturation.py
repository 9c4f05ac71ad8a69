import math

import numpy as np
import pytest

from dashboards.statistics.saturation import saturation


def test_speed_and_ceiling_are_apart_and_an_endless_rise_has_no_ceiling() -> None:
    steps = np.arange(0.0, 101.0, 10.0)
    fast, slow = (saturation(steps, 0.3 + 0.2 * steps / (steps + time)) for time in (5.0, 20.0))
    assert fast is not None and slow is not None
    assert (fast.ceiling, slow.ceiling) == (pytest.approx(0.5, abs=2e-3), pytest.approx(0.5, abs=2e-3))
    assert (fast.half, slow.half) == (pytest.approx(500 / 110, rel=0.05), pytest.approx(2000 / 140, rel=0.05))
    line = saturation(steps, 0.3 + 0.001 * steps + 0.003 * np.cos(steps))
    assert line is not None and math.isinf(line.high)
    assert saturation(steps[:4], steps[:4]) is None
