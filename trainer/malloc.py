"""What the C library does with memory that tensors on a CPU gave back."""

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of <malloc.h>
MADV_HUGEPAGE = 14  # of <sys/mman.h>
HUGE_PAGE = 2**21
KEPT_BYTES = 2**29  # at the end of the heap
LARGEST_ON_HEAP = 2**25
DEFAULT_TOP_PAD = 2**17


@cache  # once in a process: warm ranks train one trial after the other
def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next allocation, in huge pages; other C libraries are left alone.

    A training step frees and allocates the same activations again and again. By default large ones go back to
    the system every time, and every page of the next ones is faulted in and zeroed anew: a sixth of a step of a
    small model. Larger blocks than `LARGEST_ON_HEAP` still go back: held, they leave holes of gigabytes where a
    vocabulary is large.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_ON_HEAP)
    _ask_for_huge_pages(libc)


def _ask_for_huge_pages(libc: ctypes.CDLL) -> None:
    """Grow the heap to what is kept of it, in pages of 2 MiB; memory is still taken only as it is used."""
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.sbrk.argtypes = [ctypes.c_ssize_t]
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.malloc_trim(0)
    start = libc.sbrk(0)
    libc.mallopt(M_TOP_PAD, KEPT_BYTES - 2 * LARGEST_ON_HEAP)
    libc.free(libc.malloc(LARGEST_ON_HEAP // 2))
    libc.mallopt(M_TOP_PAD, DEFAULT_TOP_PAD)
    first = -(-start // HUGE_PAGE) * HUGE_PAGE
    libc.madvise(first, libc.sbrk(0) - first, MADV_HUGEPAGE)
