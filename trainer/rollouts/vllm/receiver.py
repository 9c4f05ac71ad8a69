"""vLLM weight-transfer backend `loptune_http`, which receives weights over HTTP.

vLLM's own backends need interconnected GPUs (NCCL, CUDA IPC, RDMA). This one only needs the
server's port. Each request carries a chunk of weights, so trainer and server can be restarted
independently. vLLM loads this module in every server process through the entry point
`vllm.general_plugins`; it must not import trainer modules.
"""

from dataclasses import dataclass
from functools import wraps
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform

BACKEND = "loptune_http"


def register() -> None:
    """Register the backend with vLLM. Called in each vLLM process, sometimes twice."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, HttpWeightTransferEngine)


@dataclass
class HttpInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Empty: no handshake is needed."""


@dataclass
class HttpUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A chunk of weights, with their Hugging Face names."""

    file: str  # safetensors on this machine, see `trainer.rollouts.vllm.upload`


class HttpWeightTransferEngine(WeightTransferEngine[HttpInit, HttpUpdate]):  # type: ignore[misc]
    """Loads the weights of each request into the model."""

    init_info_cls = HttpInit
    update_info_cls = HttpUpdate

    def init_transfer_engine(self, init_info: HttpInit) -> None:
        """Do nothing: no connection is needed."""

    def start_weight_update(self) -> None:
        """Prepare the layers to load weights in checkpoint layout."""
        pack_reloaded_experts()
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the weights of one request synchronously.

        If a request fails, the update is discarded and the next update starts clean.
        """
        try:
            self.receive_weights(self.parse_update_info(update_info))
        except BaseException:
            self._drop_incomplete_layers()
            raise

    def receive_weights(self, update_info: HttpUpdate) -> None:
        """Load the weights of one request."""
        weights = load_file(update_info.file)
        self.model.load_weights((name, weight.to(self.device)) for name, weight in weights.items())

    def finish_weight_update(self) -> None:
        """Convert the layers back to their compute layout."""
        finalize_layerwise_reload(self.model, self.model_config)
        repack_output_embedding(self.model)

    def shutdown(self) -> None:
        """Do nothing: there is nothing to release."""

    def _drop_incomplete_layers(self) -> None:
        """Discard partially received layers and restore their previous weights.

        Otherwise vLLM would keep the received part and combine it with the next update.
        """
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            info.loaded_weights.clear()
            info.load_numel = 0
        finalize_layerwise_reload(self.model, self.model_config)


def repack_output_embedding(model: Any) -> None:
    """Rebuild the packed copy of a tied output embedding, which vLLM creates on CPUs but does not
    update when weights are reloaded.
    """
    lm_head = getattr(model, "lm_head", None)
    if lm_head is not None and hasattr(lm_head, "cpu_linear"):
        lm_head.quant_method.process_weights_after_loading(lm_head)


def pack_reloaded_experts() -> None:
    """Make vLLM pack a layer's experts again when they are reloaded.

    On CPUs vLLM's kernel reads experts in a packed layout. vLLM (0.32) packs them at the first load
    only, and would copy later weights into the packed tensors unpacked.
    """
    set_up = UnquantizedFusedMoEMethod._setup_kernel
    if not current_platform.is_cpu() or hasattr(set_up, "__wrapped__"):
        return

    @wraps(set_up)
    def set_up_and_pack(self: Any, layer: Any, w13: Any, w2: Any) -> None:
        is_reload = self.moe_kernel is not None
        set_up(self, layer=layer, w13=w13, w2=w2)
        if is_reload:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    UnquantizedFusedMoEMethod._setup_kernel = set_up_and_pack
