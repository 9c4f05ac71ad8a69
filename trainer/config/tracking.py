"""Records of a run: checkpoints, MLflow."""

from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from trainer.config.credentials import UrlWithoutCredentials
from trainer.section import Count, Section


class CheckpointConfig(Section):
    """Checkpoints kept on disk."""

    every_steps: Count = Field(20, description="training steps between checkpoints")
    keep_last: Count = Field(2, description="newest checkpoints kept")
    keep_best: bool = Field(True, description="also keep the checkpoint with the best eval/accuracy")


class TrackingConfig(Section):
    """MLflow."""

    uri: UrlWithoutCredentials | None = Field(
        None, description="tracking URI; MLFLOW_TRACKING_URI, else SQLite in the runs folder"
    )
    experiment: str | None = Field(None, description="experiment name; the run's or sweep's name if null")
    offline: bool = Field(False, description="write only metrics.jsonl; `trainer upload` sends it later")
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        default_factory=list, description="send metrics also to tensorboard, wandb, trackio (pip install them)"
    )
    completions: Annotated[int, Field(ge=0)] = Field(8, description="sampled completions logged per evaluation")
    system_metrics: bool = Field(
        True, description="log MLflow's system metrics of the first rank's machine; not offline"
    )
    tags: dict[str, str] = Field(default_factory=dict, description="MLflow tags of the run")


class Tracked(Protocol):
    """A configuration that a run is recorded with."""

    @property
    def tracking(self) -> TrackingConfig:
        """Where the record goes."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """Return the configuration as JSON values."""
