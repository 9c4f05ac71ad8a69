"""Sampling of completions."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.config.credentials import UrlWithoutCredentials
from trainer.section import Count, Fraction, Positive, Probability, Section, needs


class VllmConfig(Section):
    """Settings of the vLLM engine."""

    gpu_memory_utilization: Probability = Field(0.45, description="share of GPU memory for weights and KV cache")
    max_model_len: Count | None = Field(None, description="context length; prompt + completion limit if null [tokens]")
    enforce_eager: bool = Field(False, description="disable CUDA graphs")
    sleep_level: Literal[0, 2] = Field(
        2,
        description="GPU memory vLLM frees while training: 0 none, 2 weights and KV cache",
        json_schema_extra=needs("mode=colocate"),
    )
    tensor_parallel: Count = Field(1, description="ranks sharing one engine")
    max_num_seqs: Count | None = Field(
        None, description="requests decoded at one time; as many as a rank's share of a step, 512 at most, if null"
    )
    kv_cache_mb: Count | None = Field(
        None, description="KV cache [MiB]; from gpu_memory_utilization on a GPU, 256 on a CPU if null"
    )
    mode: Literal["colocate", "server"] = Field(
        "colocate", description="colocate: an engine in each rank; server: engines elsewhere, see `trainer serve`"
    )
    server_base_urls: Annotated[
        list[Annotated[UrlWithoutCredentials, Field(pattern="^https?://")]], Field(min_length=1)
    ] = Field(
        ["http://127.0.0.1:8000"],
        description="servers; rank r samples from number r % count",
        json_schema_extra=needs("mode=server"),
    )
    server_weight_transfer: Literal["auto", "http", "nccl"] = Field(
        "auto",
        description="how weights reach the servers: http everywhere, nccl between GPUs; auto: nccl on GPUs",
        json_schema_extra=needs("mode=server"),
    )
    server_timeout_s: Positive = Field(
        240.0, description="time limit of waiting for a server to start [s]", json_schema_extra=needs("mode=server")
    )


class RolloutConfig(Section):
    """Sampling of completions."""

    engine: Literal["auto", "transformers", "vllm"] = Field(
        "auto", description="auto: vllm where a GPU and vLLM are present, else transformers"
    )
    prompts_per_step: Count = Field(64, description="prompts of one step, over all ranks")
    group_size: Count = Field(8, description="completions per prompt")
    dynamic_sampling: bool = Field(
        False, description="replace groups whose completions all score alike by further prompts (DAPO)"
    )
    max_sampling_rounds: Annotated[int, Field(ge=2)] = Field(
        5,
        description="after this many rounds fill the batch with dropped groups",
        json_schema_extra=needs("dynamic_sampling"),
    )
    temperature: Positive = Field(0.7, description="temperature of sampling and of all log-probabilities")
    top_p: Fraction = Field(1.0, description="probability mass of nucleus sampling")
    top_k: Annotated[int, Field(ge=0)] = Field(0, description="tokens kept; 0 keeps all")
    min_p: Probability = Field(0.0, description="drop tokens below this share of the largest probability")
    max_new_tokens: Count = Field(4096, description="completion limit [tokens]")
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, description="stop tokens besides the tokenizer's EOS"
    )
    vllm: VllmConfig = Field(
        VllmConfig(), description="settings of the vLLM engine", json_schema_extra=needs("engine=auto|vllm")
    )

    @property
    def uses_servers(self) -> bool:
        """Whether vLLM samples in processes of its own, beside the update."""
        return self.engine != "transformers" and self.vllm.mode == "server"
