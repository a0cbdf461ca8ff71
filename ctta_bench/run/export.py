"""Adapted models as plain networks: saved in the run folder, and exported from there.

A run with `keep_models` writes `models/last.safetensors` (the end of the stream) or
`models/NN-DOMAIN.safetensors` (the end of its NN-th domain, before any reset): the state dict of
the network whose logits are scored, under the network's own names, with adapters merged. The
metadata contains cell, method, model, the SHA-256 of the source weights and the normalisation.
"""

import copy
import json
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ctta_bench.errors import ConfigError, MethodError, RunError
from ctta_bench.method import Method
from ctta_bench.parts.adapters.injection import merge
from ctta_bench.record.folder import RunFolder, atomic
from ctta_bench.record.schema import BATCHES_FILE, CELL_FILE, MODELS_FOLDER, BatchLine, CellRecord
from ctta_bench.source_models.segformer_layouts import published

Keep = Literal["none", "last", "domains"]
LAST = "last"


@torch.no_grad()
def plain_state(method: Method) -> dict[str, Tensor]:
    """The state dict, on the CPU, of a plain network with the same logits as `method` has now.

    Raises MethodError if no plain network gives these logits.
    """
    name, model = type(method).__name__, method.scored_model
    if method.batch_dependent:
        raise _no_plain_form(name, "its logits depend on the other images of a batch")
    inside = set(map(id, model.parameters())) | set(map(id, method.model.parameters()))
    own_prediction = type(method).predict is not Method.predict
    outside = [n for n, p in method.trainable.items() if id(p) not in inside]
    if outside and own_prediction:
        raise _no_plain_form(name, f"it predicts with {outside[0]}, which is not in the network")
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.network.modules()):
        raise _no_plain_form(name, "it changes activations between the network's layers")
    merged = copy.deepcopy(model)
    merge(merged)
    state: dict[str, Tensor] = merged.network.state_dict()
    if odd := sorted(model.keys ^ set(state)):
        raise _no_plain_form(name, f"{odd[0]} is not in both its network and the source network")
    return {key: value.detach().cpu().contiguous().clone() for key, value in state.items()}


def _no_plain_form(method: str, reason: str) -> MethodError:
    return MethodError(
        f"{method} has no plain network that can be saved or exported: {reason}; run it with "
        "keep_models: none."
    )


def write_model(file: Path, state: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a state dict as safetensors, atomically. Raises RunError if that fails."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic(file) as temporary:
        # Not save_file: its files are readable by their owner only.
        temporary.write_bytes(safetensors.torch.save(state, {"format": "pt"} | metadata))


# -- saved during a run


class ModelKeeper:
    """Saves the models of a cell during its run, as its option `keep_models` requests.

    Raises MethodError when created, not after hours, if the method has no plain network.
    """

    def __init__(self, folder: RunFolder, method: Method, record: CellRecord, keep: Keep) -> None:
        self.directory = folder.file(MODELS_FOLDER)
        self.method, self.keep = method, keep
        self.metadata = {
            "cell": record["id"],
            "method": record["method"]["name"],
            "model": record["model"]["name"],
            "source_sha256": record["model"]["sha256"],
            "preprocessing": json.dumps(record["preprocessing"]),
        }
        if keep != "none":
            plain_state(method)

    def check_resumed(self, lines: Sequence[BatchLine]) -> None:
        """Raise RunError if the model of a domain before the resumed batch was not saved."""
        if self.keep != "domains":
            return
        for name in _visits(lines)[:-1]:
            if not (self.directory / name).is_file():
                raise RunError(
                    f"{self.directory / name}: was not saved before the run was interrupted; rerun "
                    "the cell with --force to save the model of every domain."
                )

    def domain_ended(self, lines: Sequence[BatchLine]) -> None:
        """Save the model after the batches of `lines`, if models of domains are requested."""
        if self.keep == "domains" and lines:
            self._write(_visits(lines)[-1], lines)

    def stream_ended(self, lines: Sequence[BatchLine]) -> None:
        """Save the model at the end of the stream, if any model is requested."""
        if self.keep == "last":
            self._write(f"{LAST}.safetensors", lines)
        self.domain_ended(lines)

    def _write(self, name: str, lines: Sequence[BatchLine]) -> None:
        place = {"domain": str(lines[-1]["domain"]), "round": str(lines[-1]["round"])}
        metadata = self.metadata | place | {"batches": str(len(lines))}
        write_model(self.directory / name, plain_state(self.method), metadata)


def _visits(lines: Sequence[BatchLine]) -> list[str]:
    """File names of the models for the domains of batch lines, in stream order."""
    visits = [domain for (_, domain), _ in groupby(lines, lambda x: (x["round"], x["domain"]))]
    return [
        f"{number:02d}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', domain)}.safetensors"
        for number, domain in enumerate(visits)
    ]


def check_kept(folder: RunFolder, keep: Keep) -> None:
    """Raise RunError if a finished cell lacks the models that are now requested."""
    if keep == "none":
        return
    try:
        lines = folder.file(BATCHES_FILE).read_text("utf-8").splitlines()
        visits = _visits([json.loads(line) for line in lines])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder.file(BATCHES_FILE)}: is damaged; use --force.") from error
    directory = folder.file(MODELS_FOLDER)
    # The end of the stream is the end of its last domain.
    alternatives = [f"{LAST}.safetensors", *visits[-1:]] if keep == "last" else []
    there = [(directory / name).is_file() for name in alternatives or visits]
    if not (any(there) if alternatives else all(there)):
        raise RunError(
            f"{folder.path}: is done, but without the models of --keep-models {keep}; rerun it "
            "with --force to save them."
        )


# -- exported after a run


def export(cell: Path, out: Path, *, domain: str | None = None, force: bool = False) -> Path:
    """Copy a saved model of the run folder `cell` to `out` (.safetensors); returns the saved file.

    domain: export the model at the end of this domain (its last visit, or `NN-DOMAIN`) instead of
    the end of the stream. A SegFormer gets the tensor names of mmsegmentation, or of its authors'
    code. Raises ConfigError if `out` has another suffix or exists (unless `force`), RunError if
    there is no such model or its weights are not finite.
    """
    if out.suffix != ".safetensors":
        raise ConfigError(f"{out}: exports are .safetensors files; choose a name with that suffix.")
    if out.exists() and not force:
        raise ConfigError(f"{out}: exists; choose another name, or use --force.")
    file = _kept_file(cell, domain)
    try:
        with safe_open(file, framework="pt") as stored:
            metadata = dict(stored.metadata() or {})
        state = safetensors.torch.load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{file}: cannot be read ({error}); run the cell with --force.") from error
    for key, value in state.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise RunError(f"{file}: {key} is not finite: adaptation diverged; lower lr and rerun.")
    write_model(out, published(state), metadata)
    return file


def _kept_file(cell: Path, domain: str | None) -> Path:
    if not (cell / CELL_FILE).is_file():
        raise RunError(f"{cell}: is not a run folder (it has no {CELL_FILE}).")
    found = (cell / MODELS_FOLDER).glob("*.safetensors")
    files = sorted(found, key=lambda f: (len(f.stem.partition("-")[0]), f.stem))
    if not files:
        raise RunError(
            f"{cell}: has no saved model; rerun it with --keep-models last (and --force if done)."
        )
    if domain is None:
        if not RunFolder(cell).is_done:
            raise RunError(f"{cell}: is not done; finish it, or choose a finished --domain.")
        return next((f for f in files if f.stem == LAST), files[-1])
    fitting = [f for f in files if domain in (f.stem, f.stem.partition("-")[2])]
    if not fitting:
        names = ", ".join(f.stem for f in files)
        raise RunError(f"{cell}: has no saved model of domain {domain!r}; it has: {names}.")
    return fitting[-1]
