"""Settings of low-rank adapters."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trainer.config.section import Positive, Section

ALL_LINEAR = "all-linear"


def _as_names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class LoraConfig(Section):
    """A low-rank adapter that is trained in place of the weights [arXiv:2106.09685]."""

    r: Annotated[int, Field(ge=0)] = Field(0, description="rank of the adapter; 0 trains the weights themselves")
    alpha: Positive = Field(32.0, description="the product of the adapter's factors is scaled by alpha / r")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="share of an adapter's inputs dropped in updates; never where log-probabilities are scored",
    )
    target_modules: Annotated[list[str], BeforeValidator(_as_names), Field(min_length=1)] = Field(
        [ALL_LINEAR], description="last part of the names of adapted linear layers; all-linear: all but the output"
    )
    rslora: bool = Field(False, description="scale by alpha / sqrt(r) instead [arXiv:2312.03732]")
    init: Literal["kaiming", "gaussian"] = Field(
        "kaiming", description="of the first factor; the second starts at 0, so that nothing changes at first"
    )
