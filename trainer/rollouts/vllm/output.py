"""Workaround for vLLM's packed output embedding on CPUs, which is not reloaded."""

from typing import Any


def repack_output_embedding(model: Any) -> None:
    """Rebuild the packed copy of a tied output embedding, which vLLM creates on CPUs but does not
    update when weights are reloaded.
    """
    lm_head = getattr(model, "lm_head", None)
    if lm_head is not None and hasattr(lm_head, "cpu_linear"):
        lm_head.quant_method.process_weights_after_loading(lm_head)
