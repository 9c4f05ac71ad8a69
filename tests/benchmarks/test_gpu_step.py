from argparse import Namespace

import pytest

from benchmarks.gpu_step import row

SECONDS = {"rollout": 4.0, "logprobs": 1.0, "update": 2.0, "sync": 0.1, "step": 7.2}


@pytest.mark.parametrize(("side", "passes"), [("plain", 1), ("Lopti", 2)])
def test_speed_and_utilisation(side, passes):
    arguments = Namespace(model="0.5B", prompts=4, prompt_tokens=100, tokens=400)
    found = {"seconds": SECONDS, "peak_bytes": 12e9, "device": "NVIDIA H100 80GB HBM3"}
    tokens = 4 * 8 * 500 * passes / 2
    flops = 6 * 494_032_768 + 12 * 24 * 896 * 500
    seconds = ["4.00", "1.00", "2.00", "0.10", "7.20"]
    per_second = [f"{tokens:,.0f}", f"{tokens * flops / 9.89e12:.1f} %"]
    assert row(side, found, arguments) == [side, *seconds, *per_second, "12.0"]


def test_of_trl_only_the_step_is_known():
    arguments = Namespace(model="tiny", prompts=4, prompt_tokens=100, tokens=400)
    found = {"seconds": {"step": 7.2}, "peak_bytes": 12e9, "device": "CPU"}
    assert row("TRL", found, arguments) == ["TRL", "", "", "", "", "7.20", "", "unknown", "12.0"]
