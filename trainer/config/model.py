"""Model and adapter settings."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from loptune.section import Positive, Section, needs, refusal

ALL_LINEAR = "all-linear"


def _as_names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class LoraConfig(Section):
    """LoRA adapter, trained instead of the full weights [arXiv:2106.09685]."""

    r: Annotated[int, Field(ge=0)] = 0
    """adapter rank; 0 trains the full weights"""
    alpha: Positive = needs("r", 32.0)
    """adapter scale is alpha / r"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = needs("r", 0.0)
    """dropout on adapter inputs, only in update passes"""
    target_modules: Annotated[
        list[str], BeforeValidator(_as_names, str | list[str]), Field(min_length=1)
    ] = needs("r", [ALL_LINEAR])
    """names (last part) of the linear layers to adapt; all-linear: all except the output layer"""
    rslora: bool = needs("r", False)
    """use the scale alpha / sqrt(r) [arXiv:2312.03732]"""

    @property
    def adapts_all(self) -> bool:
        """Whether every linear layer except the output layer is adapted."""
        return self.target_modules == [ALL_LINEAR]


class ModelConfig(Section):
    """The policy to train."""

    name_or_path: str = "tiny"
    """Hub name or folder; `tiny` is the built-in model (106,000 parameters)"""
    revision: str | None = None
    """Hub revision (branch, tag or commit)"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """compute dtype; auto: bfloat16 on a GPU, float32 on a CPU; master weights stay float32"""
    attn_implementation: str = "sdpa"
    """attention kernel: sdpa, eager or flash_attention_2"""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass"""
    compile: Literal["none", "layers"] = "none"
    """layers: compile each decoder layer with torch.compile (not tested on a GPU)"""
    packing: bool = False
    """compute a microbatch's rows as one sequence without padding; needs flash_attention_2 on a GPU
    (not tested on a GPU)"""
    trust_remote_code: bool = False
    """allow Python code from the model folder or Hub repository"""
    load_check: Literal["auto", "full", "off"] = "auto"
    """compare training, sampling and checkpoint with the published model before step 1; auto: skip
    the parts that need a second copy of the model, unless they take only seconds
    """
    lora: LoraConfig = LoraConfig()

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if self.compile == "layers" and self.lora.r > 0:
            raise refusal(
                "compile-with-lora",
                "model.compile=layers does not work with LoRA: with and without the adapter, a "
                "layer is compiled to different code, so the KL penalty would not start at 0; set "
                "model.compile to none, or model.lora.r to 0",
            )
        return self
