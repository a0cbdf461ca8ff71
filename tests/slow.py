"""Tent that takes its time, or meets a fate at its fourth batch: a plug-in for launches."""

import os
import signal
import sys
import time

import torch
from pydantic import Field

from ctta_bench.methods.tent import Tent
from ctta_bench.registry import METHODS

FATES = "^(none|raise|exit|leave|kill|memory)$"


@METHODS.register_module("slow")
class Slow(Tent):
    """Tent with a pause before each batch."""

    class Hyperparameters(Tent.Hyperparameters):
        """Tent's, and what happens."""

        pause: float = Field(0.0, ge=0, description="seconds before each batch")
        fate: str = Field("none", pattern=FATES, description="at the fourth batch")

    def setup(self) -> None:
        """Count the batches in a buffer, so that a resumed run goes on counting."""
        super().setup()
        self.seen = torch.zeros(())

    def adapt(self, images: torch.Tensor) -> torch.Tensor:
        """Wait, then adapt, unless the fate comes first."""
        time.sleep(self.hp.pause)
        self.seen += 1
        if self.seen == 4:
            meet(self.hp.fate)
        return super().adapt(images)


def meet(fate: str) -> None:
    """End as the fate says, or go on."""
    if fate == "raise":
        raise ValueError("the fourth batch is too much")
    if fate == "exit":
        sys.exit(0)
    if fate == "leave":
        os._exit(0)
    if fate == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "memory":
        raise MemoryError("no memory is left")
