"""A trial in a pool: it runs in a thread of the driver, and the next trial reuses its ranks."""

from collections.abc import Mapping
from typing import Any

from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup

from sweep.programs.base import ResourcesSpec
from sweep.trials.nodes import WorkerLostError
from sweep.trials.trainable import SweepTrial, TrialPlan
from sweep.trials.worker import START_TIMEOUT_S


def reserve(resources: ResourcesSpec) -> PlacementGroup:
    """Reserve the resources of one trial on this machine.

    Raises:
        WorkerLostError: the resources did not become free in time.
    """
    group = placement_group(resources.bundles(), strategy="STRICT_PACK")
    if not group.wait(START_TIMEOUT_S):
        remove_placement_group(group)  # else it would take the resources once they are free
        raise WorkerLostError(f"the resources of a trial were not free in {START_TIMEOUT_S:g} s")
    return group


class PooledTrial(SweepTrial):
    """Runs trials of several sweeps, one at a time, in resources that the first trial reserves."""

    def __init__(self) -> None:
        # Tune's own constructor is for objects in Ray's processes; this one is in the driver.
        self._reserved: PlacementGroup | None = None
        self._has_run = False

    def take(self, plan: TrialPlan, config: Mapping[str, Any]) -> None:
        """Make the trial of a sweep the next one to run. `step` runs it."""
        self.plan = plan
        if self._has_run:
            self.reset_config(dict(config))
        else:
            self._assign(dict(config))
        self._has_run = True

    def _placement(self) -> PlacementGroup:
        # Within `step`: the driver does not wait for the resources, and the error is the trial's.
        if self._reserved is None:
            self._reserved = reserve(self.plan.spec.resources)
        return self._reserved
