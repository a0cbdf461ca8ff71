"""Weights of timm's models on the Hugging Face hub: look-up in its cache, download on request.

Only `download` uses the network. The cache is the hub's own (HF_HOME, HF_HUB_CACHE), so weights
that other programs downloaded are found. HF_HUB_OFFLINE and HF_ENDPOINT are respected.
"""

import os
from pathlib import Path
from typing import Any

from ctta_bench.errors import ConfigError, DataError
from ctta_bench.model.preprocessing import recorded_cfg


def candidates(network: Any) -> tuple[str, str | None, list[str]]:
    """Hub repository, revision and file names of a timm network's weights, preferred name first.

    The repository is "" if the weights are not on the hub.
    """
    cfg = recorded_cfg(network)
    repository, _, revision = (cfg.get("hf_hub_id") or "").partition("@")
    name = cfg.get("hf_hub_filename") or "pytorch_model.bin"
    if name == "pytorch_model.bin":
        return repository, revision or None, ["model.safetensors", name]
    safe = str(Path(name).with_suffix(".safetensors"))
    return repository, revision or None, list(dict.fromkeys([safe, name]))


def cached(network: Any) -> Path | None:
    """The file of weights in the hub's cache; None if it is not there. Without network access."""
    from huggingface_hub import try_to_load_from_cache

    repository, revision, names = candidates(network)
    if not repository:
        return None
    for name in names:
        found = try_to_load_from_cache(repository, name, revision=revision)
        if isinstance(found, str):
            return Path(found)
    return None


def download(network: Any, model: str) -> Path:
    """Download the weights of a timm network into the hub's cache, with the hub's progress bar.

    Raises ConfigError if they are not on the hub, DataError if they cannot be downloaded.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    repository, revision, names = candidates(network)
    if not repository:
        where = recorded_cfg(network).get("url") or "timm records no address"
        raise ConfigError(
            f"model {model!r}: its weights are not on the hub ({where}); download them yourself "
            "and give them with --weights FILE."
        )
    failed: BaseException | None = None
    # Errors of the hub and of its transport, whose package depends on the hub's version.
    faults: tuple[type[Exception], ...] = (HfHubHTTPError, OSError, ValueError)
    faults += tuple(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    for name in names:
        try:
            return Path(hf_hub_download(repository, name, revision=revision))
        except LocalEntryNotFoundError as error:  # offline mode, or server unreachable
            failed = error
            break
        except EntryNotFoundError as error:  # try the next name
            failed = error
        except faults as error:
            failed = error
            break
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _first_line(failed)
    host = os.environ.get("HF_ENDPOINT", constants.ENDPOINT)
    raise DataError(
        f"model {model!r}: {names[0]} of {repository} cannot be downloaded from {host} ({why}); "
        "get the file by other means and give it with --weights FILE."
    )


def _first_line(error: BaseException | None) -> str:
    reason = (error.__cause__ if error is not None else None) or error
    return str(reason).strip().partition("\n")[0].rstrip(".") or type(reason).__name__
