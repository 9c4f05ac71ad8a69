"""Records of a run: checkpoints, MLflow."""

from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from trainer.config.credentials import UrlWithoutCredentials
from trainer.section import Count, Section


class CheckpointConfig(Section):
    """Checkpoints kept on disk."""

    every_steps: Count = 20
    """training steps between checkpoints"""
    keep_last: Count = 2
    """newest checkpoints kept"""
    keep_best: bool = True
    """also keep the checkpoint with the best eval/accuracy"""


class TrackingConfig(Section):
    """MLflow."""

    uri: UrlWithoutCredentials | None = None
    """tracking URI; MLFLOW_TRACKING_URI, else SQLite in the runs folder"""
    experiment: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """experiment name; the run's or sweep's name if null"""
    offline: bool = False
    """write only metrics.jsonl; `trainer upload` sends it later"""
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field([])
    """send metrics also to tensorboard, wandb, trackio (pip install them)"""
    completions: Annotated[int, Field(ge=0)] = 8
    """completions recorded per evaluation, and as many of the training step before it"""
    system_metrics: bool = True
    """log MLflow's system metrics of the first rank's machine; not offline"""
    tags: dict[str, str] = Field({})
    """MLflow tags of the run"""


class Tracked(Protocol):
    """A configuration that a run is recorded with."""

    @property
    def tracking(self) -> TrackingConfig:
        """Where the record goes."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """Return the configuration as JSON values."""
