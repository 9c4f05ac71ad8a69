"""Two ranks against one at the level of the update, under every strategy."""

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import random_model
from tests.invariants.ranks import run_ranks
from tests.invariants.update_job import RANKS_TERMS, run_case, update_config
from tests.rounding import adamw_tolerance, sum_tolerance

pytestmark = pytest.mark.slow


def zero(stage, **more):
    return {"parallel.strategy": "deepspeed", "parallel.zero_stage": stage, **more}


DDP = {"parallel.strategy": "ddp"}
WHITENED = {"algorithm.advantage": "reinforce_plus_plus"}
BFLOAT16 = {"model.dtype": "bfloat16"}
LORA = {"model.lora.r": 4}
BALANCED = {"balanced": True}  # groups are exchanged between the ranks
ROLLOUT = {"optim.old_logprobs": "rollout"}
UNCLIPPED = {"optim.max_grad_norm": 2.0}
# Every stage with full weights; what changes the update or its precision runs on some of them.
CASES = {
    "ddp": DDP,
    "zero-0": zero(0),
    "zero-1": zero(1),
    "zero-2 optimizer offloaded": zero(2, **{"parallel.offload": "optimizer"}),
    "zero-2 reduced while the backward pass goes on": zero(2, zero={"overlap_comm": True}),
    "zero-1 with gradients above the bucket": zero(1, zero={"bucket": 300}),
    "zero-2 with gradients above the bucket": zero(2, zero={"bucket": 300}),
    "zero-3": zero(3),
    "zero-3 with gradients above the bucket": zero(3, zero={"bucket": 300}),
    "zero-3 in sub-groups": zero(3, zero={"sub_group_size": 2000}),
    "zero-3 parameters offloaded, recomputed": zero(
        3, **{"parallel.offload": "parameters", "model.gradient_checkpointing": True}
    ),
    "ddp, balanced": DDP | BALANCED,
    "zero-2, balanced": zero(2) | BALANCED,
    "zero-2, balanced, in line": zero(2) | BALANCED | {"model.packing": True},
    "whitened zero-2": zero(2) | WHITENED,
    "rollout zero-3": zero(3) | ROLLOUT,
    "unclipped zero-2": zero(2) | UNCLIPPED,
    "bfloat16 zero-1": zero(1) | BFLOAT16,
    "bfloat16 zero-2 with gradients above the bucket": zero(2, zero={"bucket": 300}) | BFLOAT16,
    "bfloat16 zero-3": zero(3) | BFLOAT16,
    "lora ddp": DDP | LORA,
    "lora zero-3, recomputed": zero(3, **{"model.gradient_checkpointing": True}) | LORA,
    "bfloat16 lora zero-2": zero(2) | LORA | BFLOAT16,
}
IN_FLOAT32 = [name for name in CASES if not name.startswith("bfloat16")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of all cases and, by case, what the two ranks report; the baselines are made by
    one rank.
    """
    folder = tmp_path_factory.mktemp("ranks")
    random_model().save_pretrained(folder / "model")
    ranks = run_ranks(
        "tests.invariants.update_job", 2, {"model": str(folder / "model"), "cases": CASES}, folder
    )
    results = {name: [rank[name] for rank in ranks] for name in CASES}
    for name, overrides in {
        "alone": {},
        "whitened alone": WHITENED,
        "lora alone": LORA,
        "rollout alone": ROLLOUT,
        "unclipped alone": UNCLIPPED,
    }.items():
        results[name] = [run_case(update_config(folder / "model", overrides), name, folder)]
    return folder, results


def weights(folder, name):
    tensors = load_file(folder / f"{name}.safetensors")
    tensors.pop("lm_head.weight", None)  # tied: the embedding once more
    return {key: tensor.double() for key, tensor in tensors.items()}


def largest_difference(folder, case, other):
    a = weights(folder, case)
    b = weights(folder, other)
    assert a.keys() == b.keys()
    return max(float((a[key] - b[key]).abs().max()) for key in a)


def baseline(name):
    kinds = (kind for kind in ("whitened", "lora", "rollout", "unclipped") if kind in name)
    return " ".join([*kinds, "alone"])


def start(folder, name):
    """Weights of before the first step; of an adapter those of its second factor."""
    if "lora" in name:
        return {key: 0 * tensor for key, tensor in weights(folder, name).items() if "lora_B" in key}
    return weights(folder, "model/model")


def moves(folder, name):
    """What training added to the weights, in one tensor."""
    end = weights(folder, name)
    begin = start(folder, name)
    return torch.cat([(end[key] - begin[key]).flatten() for key in begin])


def test_the_ranks_have_unequal_numbers_of_microbatches(trained):
    _, results = trained
    first, second = (result["steps"][0] for result in results["zero-3"])
    assert first["own_microbatches"] != second["own_microbatches"]
    assert first["microbatches"] == second["microbatches"]
    assert first["updates"] == 4  # two update batches in each of two passes


def test_balanced_ranks_train_on_about_as_many_tokens(trained):
    _, results = trained

    def differences(name):
        """The difference of the ranks' tokens in each update batch."""
        both = (result["steps"][0]["tokens"] for result in results[name])
        return [abs(first - second) for first, second in zip(*both, strict=True)]

    # groups of 53, 64, 52 and 49 tokens; then of 72, 31, 152 and 45
    assert differences("ddp") == [8, 148]
    for name in CASES:
        if "balanced" in name:
            assert differences(name) == [8, 66]


@pytest.mark.parametrize(
    ("name", "collective", "sent", "times"),
    [
        *((name, "allreduce", 1.0, "updates") for name in ("ddp", "zero-0", "zero-1")),
        ("whitened zero-2", "allreduce", 1.0, "microbatches"),
        # the gradient in, a rank's half of it out
        ("zero-3", "reduce_scatter_base", 1.5, "microbatches"),
    ],
)
def test_gradients_are_reduced_once_an_update_or_once_a_microbatch(
    trained, name, collective, sent, times
):
    folder, results = trained
    gradient = sum(tensor.numel() for tensor in weights(folder, "model/model").values())
    for step in (result["steps"][0] for result in results[name]):
        expected = {"updates": step["updates"], "microbatches": 2 * sum(step["microbatches"])}[
            times
        ]
        excess = step["numbers"][collective] - sent * gradient * expected
        assert 0 <= excess < 100, step["numbers"]  # beside it a few counts and norms


@pytest.mark.parametrize("name", CASES)
def test_torchs_linear_function_is_back_after_a_run(trained, name):
    _, results = trained
    assert all(result["linear_restored"] for result in results[name])


def test_a_large_state_is_stepped_in_several_sub_groups(trained):
    _, results = trained
    assert (
        results["zero-3"][0]["sub_groups"] == 1 < results["zero-3 in sub-groups"][0]["sub_groups"]
    )


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_losses_and_parameters_are_those_of_one_rank(trained, name):
    folder, results = trained
    alone = results[baseline(name)][0]["steps"]
    for result in results[name]:
        for step, expected in zip(result["steps"], alone, strict=True):
            assert step["updates"] == expected["updates"]
            assert step["loss"] == pytest.approx(
                expected["loss"], abs=sum_tolerance(RANKS_TERMS)
            )  # of advantages of about 1
            for key in ("grad_norm", "advantage_squares"):
                assert step[key] == pytest.approx(expected[key], rel=sum_tolerance(RANKS_TERMS))
    config = update_config(folder / "model", {})
    gradient = results[baseline(name)][0]["largest_gradient"]
    bound = adamw_tolerance(
        RANKS_TERMS,
        gradient,
        sum(step["updates"] for step in alone),
        config.optim.lr,
        config.optim.eps,
    )
    moved = float(moves(folder, baseline(name)).abs().max())
    largest = largest_difference(folder, name, baseline(name))
    print(f"\n{name}: {largest:.1e}, bound {bound:.1e}, after moves of {moved:.1e}")
    assert largest < bound < 0.01 * moved


def test_gradients_are_clipped_in_all_cases_but_the_unclipped_ones(trained):
    folder, results = trained

    def norms(name):
        return [step["grad_norm"] / step["updates"] for step in results[name][0]["steps"]]

    assert min(norms("alone")) > update_config(folder / "model", {}).optim.max_grad_norm
    assert max(norms("unclipped alone")) < UNCLIPPED["optim.max_grad_norm"]


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("bfloat16")])
def test_lower_precision_moves_the_same_way(trained, name):
    folder, results = trained
    assert (
        float(torch.cosine_similarity(moves(folder, baseline(name)), moves(folder, name), dim=0))
        > 0.95
    )
    for step, reference in zip(
        results[name][0]["steps"], results[baseline(name)][0]["steps"], strict=True
    ):
        assert step["grad_norm"] == pytest.approx(reference["grad_norm"], rel=0.05)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("bfloat16 zero")])
def test_lower_precision_moves_as_far(trained, name):
    # clipping and the division by ranks act on the length: AdamW's eps is large beside gradients
    folder, _ = trained
    expected = float(moves(folder, baseline(name)).norm())
    assert float(moves(folder, name).norm()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", [*CASES, "alone"])
def test_a_run_from_a_checkpoint_equals_one_never_stopped(trained, name):
    folder, results = trained
    assert largest_difference(folder, name, f"{name}-resumed") == 0.0
    for result in results[name]:
        assert result["resumed"] == result["steps"][-1]


@pytest.mark.parametrize("name", [*CASES, "alone"])
def test_an_undefined_gradient_moves_no_weight(trained, name):
    folder, results = trained
    for result in results[name]:
        assert not abs(result["undefined_norm"]) < float("inf")  # inf or nan
    assert largest_difference(folder, name, f"{name}-undefined") == 0.0
