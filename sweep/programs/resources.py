"""Resources that are reserved for a trial."""

from trainer.section import Count, NonNegative, Section


class ResourcesSpec(Section):
    """Resources of one trial. The trial's own process only waits for its ranks and is not
    counted.
    """

    gpus_per_trial: NonNegative = 0
    """GPUs per trial, one per worker; below 1: a fraction of one GPU"""
    workers_per_trial: Count = 1
    """rank processes"""
    cpus_per_worker: Count = 1
    """CPU cores per rank"""

    @property
    def gpus_per_worker(self) -> float:
        """GPUs of one rank."""
        return self.gpus_per_trial / self.workers_per_trial

    @property
    def devices(self) -> float:
        """GPUs of a trial, or its CPUs where it has none."""
        return self.gpus_per_trial or self.workers_per_trial * self.cpus_per_worker
