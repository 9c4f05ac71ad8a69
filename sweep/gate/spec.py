"""The settings of a campaign."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from dashboards.statistics.campaign_noise import OWN_VARIATION
from dashboards.statistics.gate import FIRST_CLAIM
from loptune.section import Count, Positive, Section
from sweep.gate.recheck import SEEDS_APART

if TYPE_CHECKING:
    from dashboards.sources.scores import GuardSpec

PROGRAM = "program.yaml"  # file in a campaign's folder: the resolved search space of its program


class CampaignSpec(Section):
    """The settings of a campaign, ``campaign.yaml``."""

    space: str | None = None
    """search space of the program; null: scores are recorded by hand"""
    settings: dict[str, Any] = Field({})
    """settings of the first baseline"""
    metric: str = "eval/accuracy"
    """name of the score"""
    mode: Literal["max", "min"] = "max"
    """whether larger or smaller is better"""
    worthwhile: Positive
    """smallest gain that matters"""
    false_keeps: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """bound on the expected fraction of kept proposals that are not improvements"""
    first_seeds: Annotated[int, Field(ge=OWN_VARIATION)] = 8
    """runs per new baseline"""
    most_seeds: Annotated[int, Field(ge=FIRST_CLAIM, le=SEEDS_APART)] = 32
    """maximum number of runs per proposal"""
    guards: list[str] = Field([])
    """METRIC:MARGIN: a kept proposal must not be worse on METRIC by more than MARGIN;
    METRIC:MARGIN:min if smaller values are better"""
    protect: list[str] = Field([])
    """evaluation files and folders: every revision runs with the version of the first baseline"""
    max_runs: Count | None = None
    """maximum number of runs in the campaign; null: no limit"""
    max_hours: Positive | None = None
    """maximum hours from the start to the end of the campaign; null: no limit"""
    deadline: str | None = None
    """date and time at which the campaign ends, in ISO 8601; null: no limit"""
    max_proposals: Count | None = None
    """maximum number of proposals in the campaign; null: no limit"""

    def guard_specs(self) -> "list[GuardSpec]":
        """Return the metrics of the guards with their margins and directions.

        Raises:
            ConfigError: a guard is invalid, or its direction is unclear.
        """
        if not self.guards:
            return []
        from dashboards.sources.scores import guards_of  # this import loads pandas

        return guards_of(self.guards)
