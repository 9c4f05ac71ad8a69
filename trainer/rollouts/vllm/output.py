"""A copy of the output embedding that vLLM does not reload."""

from typing import Any


def repack_output_embedding(model: Any) -> None:
    """Rebuild the packed copy of a tied output embedding, which vLLM makes on CPUs and does not
    reload.
    """
    lm_head = getattr(model, "lm_head", None)
    if lm_head is not None and hasattr(lm_head, "cpu_linear"):
        lm_head.quant_method.process_weights_after_loading(lm_head)
