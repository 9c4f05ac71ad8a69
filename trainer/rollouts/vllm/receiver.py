"""The side of a vLLM server that takes weights over HTTP: a weight-transfer backend named
`loptune_http`.

vLLM's own backends need GPUs that see each other (NCCL, CUDA IPC, RDMA). This one needs a
connection to the server's port and nothing else: each request carries some weights as safetensors,
so trainer and server may come and go on their own. vLLM loads the module in every process of a
server through the entry point `vllm.general_plugins`; it must not import anything of the trainer's.
"""

import base64
from dataclasses import dataclass
from typing import Any

from safetensors.torch import load
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from trainer.rollouts.vllm.output import repack_output_embedding

BACKEND = "loptune_http"


def register() -> None:
    """Make the backend known to vLLM; called in each of its processes, in some of them twice."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, HttpWeightTransferEngine)


@dataclass
class HttpInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on."""


@dataclass
class HttpUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Some weights under their Hugging Face names."""

    safetensors: str  # base64


class HttpWeightTransferEngine(WeightTransferEngine[HttpInit, HttpUpdate]):  # type: ignore[misc]
    """Loads the weights of each request into the model."""

    init_info_cls = HttpInit
    update_info_cls = HttpUpdate

    def init_transfer_engine(self, init_info: HttpInit) -> None:
        """Do nothing: there is nothing to connect."""

    def start_weight_update(self) -> None:
        """Let the layers take weights in the layout of a checkpoint."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the weights of one request; nothing is left to wait for when it returns.

        A request that fails ends the update, and the next one starts as if there had been none.
        """
        try:
            self.receive_weights(self.parse_update_info(update_info))
        except BaseException:
            self._drop_incomplete_layers()
            raise

    def receive_weights(self, update_info: HttpUpdate) -> None:
        """Load some weights."""
        weights = load(base64.b64decode(update_info.safetensors))
        self.model.load_weights((name, weight.to(self.device)) for name, weight in weights.items())

    def finish_weight_update(self) -> None:
        """Bring the layers back into the layout they compute in."""
        finalize_layerwise_reload(self.model, self.model_config)
        repack_output_embedding(self.model)

    def shutdown(self) -> None:
        """Do nothing: there is nothing to release."""

    def _drop_incomplete_layers(self) -> None:
        """Give the layers that wait for some of their weights back those they had.

        vLLM keeps what such a layer has got and would load it with the weights of the next update.
        """
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            info.loaded_weights.clear()
            info.load_numel = 0
        finalize_layerwise_reload(self.model, self.model_config)
