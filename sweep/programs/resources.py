"""Resources that are reserved for a trial."""

from trainer.section import Count, NonNegative, Section


class ResourcesSpec(Section):
    """Resources of one trial; its own process, which waits for the ranks, is not counted."""

    gpus_per_trial: NonNegative = 0
    """GPUs; one worker drives one; below 1 is a share"""
    workers_per_trial: Count = 1
    """rank processes"""
    cpus_per_worker: Count = 1
    """CPU cores of a rank"""

    @property
    def gpus_per_worker(self) -> float:
        """GPUs of one rank."""
        return self.gpus_per_trial / self.workers_per_trial

    @property
    def devices(self) -> float:
        """GPUs of a trial, or its CPUs where it has none."""
        return self.gpus_per_trial or self.workers_per_trial * self.cpus_per_worker
