"""Memory of a method: between its steps, and the peak during a step."""

import json
import os
import tempfile
from collections import deque
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.measuring.timing import Work

_LEAVES = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)


def resting_bytes(owner: object) -> int:
    """Bytes of all tensors reachable from `owner`: networks, optimiser, memories, saved state.

    Each storage counts once.
    """
    storages: dict[int, int] = {}
    seen: set[int] = set()
    waiting: deque[Any] = deque([owner])
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _LEAVES):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            waiting.append(value.grad if value.is_leaf else None)
        elif isinstance(value, nn.Module):
            waiting += [*value.parameters(), *value.buffers(), vars(value)]
        elif isinstance(value, torch.optim.Optimizer):
            waiting.append(value.state_dict())
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple | set | frozenset | deque):
            waiting += value
        elif hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
            waiting.append(vars(value))
    return sum(storages.values())


def peak_bytes(work: Work, device: torch.device) -> int:
    """Peak of the memory that `work` uses in addition to that before it, in bytes.

    On a CPU from the allocations that torch's profiler records.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    return max(accumulate(allocations(work), initial=0))


def allocations(work: Work) -> list[int]:
    """Allocations (positive) and frees (negative) of torch's CPU allocator in `work`, in bytes.

    In order. The result of `work` is freed last.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise it prints to stderr
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        result = work()
    del result
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda change: float(change["ts"]))
    return [int(change["args"]["Bytes"]) for change in changes]
