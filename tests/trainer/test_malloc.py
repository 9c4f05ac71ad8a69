import platform
import subprocess
import sys

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_tensors_stay_with_the_process() -> None:
    def resident_growth(way: str) -> float:
        command = [sys.executable, "-c", SCRIPT, way]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert resident_growth("keep") > 60
    assert resident_growth("return") < 10
