"""What the C library does with memory that tensors on a CPU gave back."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
KEPT_BYTES = 2**29  # at the end of the heap
LARGEST_ON_HEAP = 2**25


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next allocation; other C libraries are left alone.

    A training step frees and allocates the same activations again and again. By default large ones go back to
    the system every time, and every page of the next ones is faulted in and zeroed anew: a sixth of a step of a
    small model. Larger blocks than `LARGEST_ON_HEAP` still go back: held, they leave holes of gigabytes where a
    vocabulary is large.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, LARGEST_ON_HEAP)
