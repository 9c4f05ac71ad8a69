"""A sweep whose trials sample from vLLM: two at a time on one machine, then two more in the warm
ranks.
"""

import json

import pytest
import yaml

from tests.run_cli import run_cli
from tests.trainer.rollouts.vllm.models import AGREEMENT

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm


def test_trials_of_a_sweep_sample_from_vllm(tmp_path):
    space = {
        "name": "engines",
        "trainer": {
            "preset": "tiny_kk",
            "overrides": {
                "rollout.engine": "vllm",
                "rollout.vllm.kv_cache_mb": 64,
                "rollout.prompts_per_step": 4,
                "rollout.max_new_tokens": 48,
                "evaluation.sets": {"dev": {"split": "dev", "size": 6}},
                "max_steps": 2,
                "evaluation.every_steps": 2,
                "checkpoint.every_steps": 2,
            },
        },
        "parameters": {"algorithm.ar_alpha": {"uniform": [0.0, 0.5]}},
        "baselines": [{"algorithm.ar_alpha": alpha} for alpha in (0.0, 0.1, 0.2, 0.3)],
        "search": {"sampler": "random", "configurations": 0, "seed": 0},
        "seeds": [0],
        "limits": {"max_concurrent": 2, "max_failures": 0},
    }
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    done = run_cli("sweep", "run", tmp_path / "space.yaml", "--runs-dir", tmp_path, "--offline")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    trials = sorted((tmp_path / "engines" / "trials").iterdir())
    assert len(trials) == 4
    for trial in trials:
        steps = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
        differences = [
            step["rollout/engine_logprob_diff_max"] for step in steps if "time/sync" in step
        ]
        print(f"{trial.name}: largest differences {differences} nats")
        assert len(differences) == 2 and max(differences) < AGREEMENT
