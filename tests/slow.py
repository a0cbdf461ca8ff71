"""Tent with pauses, or with a failure at its fourth batch: a plug-in for tests of launches.

With CTTA_NO_PAUSE in the environment it does not wait: a test has seen what it waited for.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from pydantic import Field

from ctta_bench.methods.tent import Tent
from ctta_bench.registry import METHODS

FATES = "^(none|raise|exit|leave|kill|memory|oom)$"


@METHODS.register_module("slow")
class Slow(Tent):
    """Tent with a pause before each batch."""

    class Hyperparameters(Tent.Hyperparameters):
        """Tent's, and what happens at the fourth batch."""

        pause: float = Field(0.0, ge=0, description="seconds before each batch")
        fate: str = Field("none", pattern=FATES, description="at the fourth batch")

    def setup(self) -> None:
        """Count the batches in a buffer, so that a resumed run continues to count."""
        super().setup()
        self.seen = torch.zeros(())

    def adapt(self, images: torch.Tensor) -> torch.Tensor:
        """Wait, then adapt, unless the fate comes first."""
        if "CTTA_NO_PAUSE" not in os.environ:
            time.sleep(self.hp.pause)
        self.seen += 1
        if self.seen == 4:
            meet(self.hp.fate)
        return super().adapt(images)


def meet(fate: str) -> None:
    """End the process as `fate` names, or do nothing."""
    if fate == "raise":
        raise ValueError("the fourth batch is too much")
    if fate == "exit":
        sys.exit(0)
    if fate == "leave":
        os._exit(0)
    if fate == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "memory":
        torch.empty(2**50)
    if fate == "oom":
        run_out_of_memory(Path(os.environ["CTTA_MEMORY_GROUP"]))


def run_out_of_memory(group: Path) -> None:
    """Join a memory cgroup and allocate more than its limit: the kernel ends this process."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    taken = []
    while len(taken) < 100:
        taken.append(bytearray(os.urandom(2**20)) * 16)
    raise AssertionError("the kernel gave more than the group may have")
