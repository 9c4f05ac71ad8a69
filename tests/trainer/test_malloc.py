import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
from trainer.malloc import keep_freed_memory

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

if sys.argv[1] == "keep":
    keep_freed_memory()
before = resident_mib()
blocks = [torch.ones(2**22) for _ in range(4)]  # 16 MiB each
del blocks
print(resident_mib() - before)
"""


FLAGS_SCRIPT = """
from trainer.malloc import KEPT_BYTES, keep_freed_memory

def heap():
    '''Size in kB and flags of each mapping of the heap.'''
    mappings, name, size = [], "", 0
    for line in open("/proc/self/smaps"):
        key, *values = line.split()
        if "-" in key:
            name = values[-1]
        elif key == "Size:":
            size = int(values[0])
        elif key == "VmFlags:" and name == "[heap]":
            mappings.append((size, values))
    return mappings

assert not any("hg" in flags for _, flags in heap())
keep_freed_memory()
print(sum(size for size, flags in heap() if "hg" in flags) * 1024 / KEPT_BYTES)
"""

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")


@needs_glibc
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="a kernel without huge pages")
def test_huge_pages_are_asked_for_most_of_what_is_kept() -> None:
    result = subprocess.run([sys.executable, "-c", FLAGS_SCRIPT], check=True, capture_output=True, text=True)
    assert 0.85 < float(result.stdout) < 1


@needs_glibc
def test_freed_tensors_stay_with_the_process() -> None:
    def resident_growth(way: str) -> float:
        command = [sys.executable, "-c", SCRIPT, way]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert resident_growth("keep") > 60
    assert resident_growth("return") < 10
