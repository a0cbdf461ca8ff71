"""What a result depends on besides its configuration: versions, device, threads, kernels."""

import functools
import hashlib
import os
import platform
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from PIL import features
from timm.layers import use_fused_attn

from ctta_bench import __version__
from ctta_bench.errors import ConfigError
from ctta_bench.record.folder import timestamp
from ctta_bench.record.schema import PLUGIN_FILES
from ctta_bench.registry import loaded_plugins, plugin_files


def environment(device: torch.device) -> dict[str, Any]:
    """What a result depends on besides its configuration: versions, device, threads, kernels."""
    packages = ("torchvision", "timm", "numpy", "scipy", "opencv-python-headless", "pillow")
    return {
        "time": timestamp(),
        "ctta_bench": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,  # includes the build, unlike the package's metadata
        **{name: _version(name) for name in packages},
        # The library that decodes JPEG: another one gives other pixels.
        "libjpeg": features.version_feature("libjpeg_turbo") or features.version("jpg"),
        "commit": _commit(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "host": platform.node(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),  # its vector instructions, which round
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "attention": "fused" if use_fused_attn() else "plain",
        "plugins": sorted(loaded_plugins()),
        PLUGIN_FILES: {name: file.sha256 for name, file in plugin_files().items()},
    }


@functools.cache  # reading the metadata takes 2 ms
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# What the package has in a checkout; other files, such as tests, decide no result.
_CODE = ("ctta_bench", "methods", "datasets", "experiments", "analysis", "pyproject.toml")


@functools.cache
def _commit() -> str | None:
    """The commit of ctta-bench, if it runs from a checkout: that of the code as it was first used.

    With changes that are not committed, a hash of them follows: `1a2b3c4d5e6f+edited-9f2c01d4`.
    """
    return commit_of(Path(__file__).resolve().parents[2])


def commit_of(root: Path) -> str | None:
    """The commit of a checkout, with the mark of changes; None if it is none."""
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD").decode().strip()
        changes = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--", *_CODE)
        new = _git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *_CODE)
        for name in filter(None, new.split(b"\0")):
            changes += name + (root / os.fsdecode(name)).read_bytes()
    except (OSError, subprocess.SubprocessError):
        return None
    digest = hashlib.sha256(changes).hexdigest()[:8]
    return f"{commit}+edited-{digest}" if changes else commit or None


def _git(root: Path, *words: str) -> bytes:
    call = ["git", "-C", str(root), *words]
    return subprocess.run(call, capture_output=True, timeout=10, check=True).stdout


def default_device() -> str:
    """`cuda` if torch can use a GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def chosen_device(name: str | None) -> str:
    """The device that the user names; None: the first accelerator, else the CPU.

    Raises ConfigError if the name is not a device, or this machine does not have it.
    """
    if name is None:
        return default_device()
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"--device {name!r}: give cpu, cuda or cuda:NUMBER.")
    gpus = torch.cuda.device_count()
    lacks_gpu = device.type == "cuda" and (device.index or 0) >= gpus
    if lacks_gpu or (device.type == "mps" and not torch.backends.mps.is_available()):
        found = f"{gpus} CUDA device{'' if gpus == 1 else 's'}"
        raise ConfigError(
            f"--device {name}: this machine has {found} that torch can use; give --device cpu, or "
            "leave the option out."
        )
    return name


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forget_peak_memory(device: torch.device) -> None:
    """Begin to count the highest memory use of a GPU, so that it is that of one cell."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mb(device: torch.device) -> float:
    """Highest memory use in MiB: of the GPU since it was forgotten, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
