"""Which policy is trained, and its adapter."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trainer.section import Positive, Section, needs

ALL_LINEAR = "all-linear"


def _as_names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class LoraConfig(Section):
    """A low-rank adapter that is trained in place of the weights [arXiv:2106.09685]."""

    r: Annotated[int, Field(ge=0)] = 0
    """rank of the adapter; 0 trains the weights themselves"""
    alpha: Positive = needs("r", 32.0)
    """scale of the adapter: alpha / r"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = needs("r", 0.0)
    """fraction of an adapter's inputs dropped in updates; never when log-probs are scored"""
    target_modules: Annotated[
        list[str], BeforeValidator(_as_names, str | list[str]), Field(min_length=1)
    ] = needs("r", [ALL_LINEAR])
    """last part of the names of adapted linear layers; all-linear: all but the output"""
    rslora: bool = needs("r", False)
    """scale by alpha / sqrt(r) instead [arXiv:2312.03732]"""


class ModelConfig(Section):
    """Which policy to train."""

    name_or_path: str = "tiny"
    """Hugging Face hub name or folder; `tiny` is the built-in model of 106,000 parameters"""
    revision: str | None = None
    """hub revision (branch, tag or commit)"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """compute dtype; auto: bfloat16 on a GPU, float32 on a CPU; master weights stay float32"""
    attn_implementation: str = "sdpa"
    """attention kernel: sdpa, eager or flash_attention_2"""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass"""
    trust_remote_code: bool = False
    """run Python code shipped in the model folder"""
    lora: LoraConfig = LoraConfig()
