"""Sampling of completions."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.config.credentials import UrlWithoutCredentials
from trainer.section import Count, Fraction, Positive, Probability, Section, needs


class VllmConfig(Section):
    """Settings of the vLLM engine."""

    gpu_memory_utilization: Probability = 0.45
    """fraction of GPU memory for weights and KV cache"""
    max_model_len: Count | None = None
    """context length; prompt + completion limit if null [tokens]"""
    enforce_eager: bool = False
    """disable CUDA graphs"""
    sleep_level: Literal[0, 2] = needs("mode=colocate", 2)
    """GPU memory vLLM frees while training: 0 none, 2 weights and KV cache"""
    tensor_parallel: Count = 1
    """ranks sharing one engine"""
    max_num_seqs: Count | None = None
    """requests decoded at one time; as many as a rank's share of a step, 512 at most, if null"""
    kv_cache_mb: Count | None = None
    """KV cache [MiB]; from gpu_memory_utilization on a GPU, 256 on a CPU if null"""
    mode: Literal["colocate", "server"] = "colocate"
    """colocate: an engine in each rank; server: engines elsewhere, see `trainer serve`"""
    server_base_urls: Annotated[
        list[Annotated[UrlWithoutCredentials, Field(pattern="^https?://")]], Field(min_length=1)
    ] = needs("mode=server", ["http://127.0.0.1:8000"])
    """servers; rank r samples from number r % count"""
    server_weight_transfer: Literal["auto", "http", "nccl"] = needs("mode=server", "auto")
    """how weights reach the servers: http everywhere, nccl between GPUs; auto: nccl on GPUs"""
    server_timeout_s: Positive = needs("mode=server", 240.0)
    """time limit of waiting for a server to start [s]"""


class RolloutConfig(Section):
    """Sampling of completions."""

    engine: Literal["auto", "transformers", "vllm"] = "auto"
    """auto: vllm where a GPU and vLLM are present, else transformers"""
    prompts_per_step: Count = 64
    """prompts of one step, over all ranks"""
    group_size: Count = 8
    """completions per prompt"""
    dynamic_sampling: bool = False
    """replace groups whose completions all score alike by further prompts (DAPO)"""
    max_sampling_rounds: Annotated[int, Field(ge=2)] = needs("dynamic_sampling", 5)
    """after this many rounds fill the batch with dropped groups"""
    temperature: Positive = 0.7
    """temperature of sampling and of all log-probabilities"""
    top_p: Fraction = 1.0
    """probability mass of nucleus sampling"""
    top_k: Annotated[int, Field(ge=0)] = 0
    """tokens kept; 0 keeps all"""
    min_p: Probability = 0.0
    """drop tokens below this fraction of the largest probability"""
    max_new_tokens: Count = 4096
    """completion limit [tokens]"""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field([])
    """stop tokens besides the tokenizer's EOS"""
    vllm: VllmConfig = needs("engine=auto|vllm", VllmConfig())
    """settings of the vLLM engine"""

    @property
    def uses_servers(self) -> bool:
        """Whether vLLM samples in processes of its own, beside the update."""
        return self.engine != "transformers" and self.vllm.mode == "server"
