"""What this machine has for workers: accelerators, cores, and how they share them."""

import os
from dataclasses import dataclass

from ctta_bench.errors import ConfigError
from ctta_bench.run.environment import usable_cores


@dataclass(frozen=True)
class Share:
    """What each worker of a pool gets. `devices`: one a worker, None where there are none."""

    jobs: int
    threads: int | None
    devices: list[str | None] | None


def visible_accelerators() -> list[str]:
    """The accelerators that we may use, as CUDA_VISIBLE_DEVICES names them, or all there are."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def share_out(jobs: int | None, cells_per_gpu: int, device: str | None, steps: int) -> Share:
    """Divide the machine among workers.

    jobs: as asked for; by default a worker for each place on an accelerator, and without one a
    single worker with all cores. A device with a number (`cuda:1`) is for all. Raises ConfigError.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: give 1 or more.")
    if cells_per_gpu < 1:
        raise ConfigError(f"--cells-per-gpu {cells_per_gpu}: give 1 or more.")
    found = visible_accelerators() if device in (None, "cuda") else []
    places = [name for name in found for _ in range(cells_per_gpu)]
    count = max(1, min(jobs or len(places) or 1, steps))
    if places and count > len(places):
        raise ConfigError(
            f"--jobs {count}: there is room for {len(places)} on {len(found)} accelerators; take "
            f"--cells-per-gpu {-(-count // len(found))} or fewer jobs."
        )
    threads = None if count == 1 else max(1, usable_cores() // count)
    # Deal the accelerators round: two workers on two of them, not both on the first.
    dealt = [found[n % len(found)] for n in range(count)] if found else None
    return Share(count, threads, list(dealt) if dealt else None)
