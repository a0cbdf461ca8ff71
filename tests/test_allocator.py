"""Memory that is let go stays with the process."""

import os
import platform
import subprocess
import sys

import pytest

from ctta_bench.run.allocator import reuse_freed_memory

# Pages that the system had to clear for the last of some steps with activations of 67 MB.
COUNT = """
import resource, torch
from ctta_bench.run.allocator import reuse_freed_memory
kept = reuse_freed_memory()
torch.set_num_threads(1)
layers = [torch.nn.Linear(64, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 64)]
network, images = torch.nn.Sequential(*layers), torch.rand(8192, 64)
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    network(images).sum().backward()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def counted(**variables: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", COUNT],
        env={k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
def test_large_blocks_are_not_cleared_again_unless_the_user_has_set_the_allocator() -> None:
    kept, faults = counted()
    untouched, many = counted(MALLOC_TRIM_THRESHOLD_="131072")
    assert (kept, untouched) == (1, 0)
    assert faults < many / 4


def test_elsewhere_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert reuse_freed_memory.__wrapped__() is False
