"""What training a model takes, by arithmetic."""

from trainer.config.schema import ParallelConfig

MASTER_BYTES = 4  # of a parameter: the float32 weights that are trained
MOMENTS_BYTES = 8  # Adam's two, float32
GRADIENT_BYTES = 4  # float32, also where the model computes in bfloat16


def held_bytes(parameters: int, compute_bytes: int, reference: bool, parallel: ParallelConfig, ranks: int) -> int:
    """Memory of one rank's device for what stays there all the time: weights, gradients, optimizer, reference.

    Activations, logits and the rollout engine's KV cache come on top.

    Args:
        parameters: of the model.
        compute_bytes: of one parameter in the dtype that the model computes in.
        reference: whether a frozen copy is held for the KL penalty.
        parallel: decides what is divided over the ranks, and what is in CPU memory.
        ranks: of the run.
    """
    if parallel.strategy != "deepspeed":
        return parameters * (MASTER_BYTES + GRADIENT_BYTES + MOMENTS_BYTES + (compute_bytes if reference else 0))
    stage = parallel.zero_stage
    weights = compute_bytes * (2 if reference else 1) / (ranks if stage == 3 else 1)
    optimizer = 0.0 if parallel.offload != "none" else (MASTER_BYTES + MOMENTS_BYTES) / (ranks if stage else 1)
    gradients = GRADIENT_BYTES / (ranks if stage >= 2 else 1)
    if parallel.offload == "parameters":
        weights = 0.0
    return round(parameters * (weights + optimizer + gradients))


def checkpoint_bytes(parameters: int, compute_bytes: int, parallel: ParallelConfig) -> int:
    """Size of one checkpoint on disk: weights and the optimizer state of all ranks."""
    in_optimizer = parallel.strategy == "deepspeed" and parallel.zero_stage > 0
    weights = compute_bytes if in_optimizer else MASTER_BYTES
    return parameters * (weights + MOMENTS_BYTES + (MASTER_BYTES if in_optimizer else 0))
