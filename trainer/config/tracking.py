"""Checkpoint and tracking settings."""

from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from loptune.credentials import UrlWithoutCredentials
from loptune.section import Count, Section


class CheckpointConfig(Section):
    """Checkpoint settings."""

    every_steps: Count = 20
    """training steps between checkpoints"""
    keep_last: Count = 2
    """number of newest checkpoints to keep"""
    keep_best: bool = True
    """also keep the checkpoint with the best eval/accuracy"""


class TrackingConfig(Section):
    """Experiment tracking."""

    uri: UrlWithoutCredentials | None = None
    """MLflow tracking URI; null: MLFLOW_TRACKING_URI, or else SQLite in the runs folder"""
    experiment: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """MLflow experiment; null: `trainer`, or the sweep's name"""
    offline: bool = False
    """record locally only; `trainer upload` sends the record to MLflow later"""
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field([])
    """also send metrics to tensorboard, wandb or trackio, which must be installed"""
    completions: Annotated[int, Field(ge=0)] = 8
    """number of completions to record from each evaluation, and from the training step before it"""
    system_metrics: bool = True
    """log MLflow system metrics of rank 0's machine (not offline)"""
    tags: dict[str, str] = Field({})
    """MLflow tags of the run"""


class HasTracking(Protocol):
    """Protocol of configurations that can be tracked."""

    @property
    def tracking(self) -> TrackingConfig:
        """The tracking settings."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """Return the configuration as JSON values."""
