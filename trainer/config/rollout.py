"""Sampling of completions."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from loptune.credentials import UrlWithoutCredentials
from loptune.section import Count, Fraction, Positive, Probability, Section, needs

# limits of vLLM's temperature; 0 is greedy
MIN_VLLM_TEMPERATURE = 0.01
MAX_VLLM_TEMPERATURE = 2.0


class VllmConfig(Section):
    """Settings of the vLLM engine."""

    gpu_memory_utilization: Probability = 0.45
    """fraction of GPU memory for weights and KV cache"""
    max_model_len: Count | None = None
    """context length; null: data.max_prompt_tokens + rollout.max_new_tokens [tokens]"""
    enforce_eager: bool = False
    """disable CUDA graphs"""
    sleep_level: Literal[0, 2] = needs("mode=colocate", 2)
    """GPU memory that vLLM frees during training: 0 nothing, 2 weights and KV cache"""
    tensor_parallel: Count = 1
    """tensor-parallel size: ranks per engine"""
    max_num_seqs: Count | None = None
    """maximum number of concurrent requests; null: the engine's completions per step, but at least
    16 and at most 512
    """
    kv_cache_mb: Count | None = None
    """KV cache size [MiB]; null: from gpu_memory_utilization on a GPU, 256 on a CPU"""
    mode: Literal["colocate", "server"] = "colocate"
    """colocate: one engine in each rank; server: separate vLLM servers, see `trainer serve`"""
    server_base_urls: Annotated[
        list[Annotated[UrlWithoutCredentials, Field(pattern="^https?://")]], Field(min_length=1)
    ] = needs("mode=server", ["http://127.0.0.1:8000"])
    """server URLs; rank r samples from server r modulo the number of servers"""
    server_weight_transfer: Literal["http", "nccl"] = needs("mode=server", "http")
    """weight transfer to the servers: http, or nccl between GPUs (never run on GPUs)"""
    server_timeout_s: Positive = needs("mode=server", 600.0)
    """timeout for a server to start [s]"""


class RolloutConfig(Section):
    """Sampling of completions."""

    other_names: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("stop_strings", "stop_sequences", "stop_words"),
            "set rollout.stop, a list of strings, or rollout.stop_token_ids",
        ),
        "include_stop_str_in_output": "set rollout.stop_in_text",
    }

    engine: Literal["auto", "transformers", "vllm"] = "auto"
    """auto: vllm if a GPU and vLLM are available, else transformers"""
    prompts_per_step: Count = 64
    """prompts per step, over all ranks"""
    group_size: Count = 8
    """completions per prompt"""
    dynamic_sampling: bool = False
    """replace groups in which all rewards are equal with groups of other prompts (DAPO)"""
    max_sampling_rounds: Annotated[int, Field(ge=2)] = needs("dynamic_sampling", 5)
    """maximum sampling rounds; then zero-variance groups fill the batch"""
    temperature: Positive = 0.7
    """temperature for sampling and for all log-probabilities"""
    top_p: Fraction = 1.0
    """top-p (nucleus) sampling; 1 is off"""
    top_k: Annotated[int, Field(ge=0)] = 0
    """top-k sampling; 0 is off"""
    min_p: Probability = 0.0
    """min-p sampling: minimum probability relative to the most likely token; 0 is off"""
    max_new_tokens: Count = 4096
    """maximum completion length [tokens]"""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field([])
    """stop token ids in addition to the tokenizer's EOS and the ids in the generation config"""
    stop: list[Annotated[str, Field(min_length=1)]] = Field([])
    """strings that end a completion, such as [User:, </answer>]"""
    stop_in_text: bool = needs("stop", True)
    """whether the text that the reward reads includes the stop string; its tokens are trained in
    either case
    """
    vllm: VllmConfig = needs("engine=auto|vllm", VllmConfig())
    """settings of the vLLM engine"""

    @property
    def uses_servers(self) -> bool:
        """Whether rollouts come from separate vLLM servers."""
        return self.engine != "transformers" and self.vllm.mode == "server"
