"""The sampling kernels that vLLM uses on GPUs (model runner V2), in Triton's interpreter, against
torch.

On a CPU vLLM samples by other code, so that no other test meets them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.slow]

TRITON = Path(sys.prefix) / "triton"
PROGRAM = """
import json, sys
sys.path.append(sys.argv[1])
import torch, triton, triton.language
import vllm.triton_utils as chosen
chosen.triton, chosen.tl = triton, triton.language  # a vLLM for CPUs puts others there
from vllm.v1.worker.gpu.sample.gumbel import apply_temperature, gumbel_sample
from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs

torch.manual_seed(0)
logits, temperatures = 3 * torch.randn(3, 1500), torch.tensor([0.7, 1.0, 0.0])
rows, tokens = torch.arange(3, dtype=torch.int32), torch.randint(1500, (3, 4))
scaled = logits.clone()
apply_temperature(scaled, rows, temperatures)
expected = torch.log_softmax(scaled.double(), dim=-1).gather(1, tokens)

def draw(logits, seeds, positions, temperature=1.0):
    each = torch.arange(len(logits), dtype=torch.int32)
    seeds, positions = torch.tensor(seeds), torch.tensor(positions)
    temperatures = torch.full((len(logits),), temperature)
    return gumbel_sample(logits, each, temperatures, seeds, positions, True, False)

row = torch.tensor([0.5, 0.0, -0.3, 0.2])
count = 200
seeds, positions = [s // 20 for s in range(count)], [s % 20 for s in range(count)]
many = draw(row.expand(count, 4).contiguous(), seeds, positions, 0.7)
wanted = torch.softmax(row.double() / 0.7, dim=-1) * count
found = torch.bincount(many, minlength=4)
flat = torch.zeros(4, 1500)
print(json.dumps({
    "temperature": float((scaled - logits / torch.tensor([[0.7], [1.0], [1.0]])).abs().max()),
    "logprobs": float((compute_token_logprobs(scaled, tokens) - expected).abs().max()),
    "largest": float(scaled.abs().max()),
    "greedy": draw(logits, [1, 2, 3], [0, 0, 0], 0.0).tolist() == logits.argmax(dim=-1).tolist(),
    "seeds": draw(flat, [5, 5, 5, 6], [0, 0, 1, 0]).tolist(),
    "chi_square": float(((found - wanted) ** 2 / wanted).sum()),
}))
"""


def test_the_kernels_give_torch_s_numbers_and_draw_from_the_distribution():
    assert TRITON.is_dir(), "there is no Triton for the interpreter: type `make install-vllm`"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TRITON)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(done.stdout.splitlines()[-1])
    rounding = measured["largest"] * 2**-23
    assert measured["temperature"] <= rounding
    assert measured["logprobs"] <= 4 * rounding
    assert measured["greedy"]
    first, again, later, other = measured["seeds"]
    assert first == again and len({first, later, other}) == 3  # by seed and position alone
    assert measured["chi_square"] < 30.66  # three degrees of freedom: exceeded by one in a million
