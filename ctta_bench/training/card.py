"""Files of a trained model: weights as .safetensors, their record as .json, and a model card."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from torch import Tensor

from ctta_bench import __version__
from ctta_bench.model import SourceModel
from ctta_bench.record.folder import atomic, timestamp, write_json
from ctta_bench.source_models.weights import RECORD

TITLES = {"accuracy": "accuracy", "miou": "mIoU"}
CARD = """# {model}, trained on {benchmark}

| | |
| --- | --- |
| data | {data[train]:,} training images of {benchmark} |
| clean {title} | {clean:.2f} % {on} {measured_on} |
| parameters | {parameters:,} |
| normalisation | {preprocessing_text} |
| seed | {seed} |
| made with | ctta-bench {ctta_bench}, torch {torch}, timm {timm}, {time} |
| weights (SHA-256 of the loaded tensors) | `{sha256}` |

Trained by `ctta-bench train-source {benchmark} --model {model}`. The {title} is that of the stored
values ({recipe[stored]}). The licences of the data{start_text} apply to the weights, too.

| recipe | value |
| --- | --- |
{recipe_rows}

| epoch | loss | test {title} % |
| ---: | ---: | ---: |
{epoch_rows}
"""


def write_model(
    model: SourceModel, out: Path, facts: dict[str, Any], score: Callable[[SourceModel], float]
) -> dict[str, Any]:
    """Write OUT.json, OUT.md and, last, OUT.safetensors; returns the record.

    facts: benchmark, data, recipe, seed, measure and history of the training. The model gets the
    stored values of its weights; `score` computes the measure in % of these.
    """
    stored = _stored(model, getattr(torch, facts["recipe"]["stored"]))
    model.network.load_state_dict(stored)
    record = {
        "model": model.name,
        "parameters": sum(p.numel() for p in model.network.parameters()),
        **facts,
        clean_key(facts): round(score(model), 2),
        "preprocessing": model.preprocessing.record(),
        "sha256": model.sha256(),
        "ctta_bench": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "time": timestamp(),
    }
    write_json(out.with_suffix(".json"), record)
    with atomic(out.with_suffix(".md")) as temporary:
        temporary.write_text(card(record, str(model.preprocessing)), encoding="utf-8")
    with atomic(out) as temporary:
        safetensors.torch.save_file(stored, temporary, _metadata(model, record))
        temporary.chmod(0o644)  # safetensors makes files that only their owner can read
    return record


def clean_key(facts: dict[str, Any]) -> str:
    """The record's key for the measure of the stored weights: clean_accuracy or clean_miou."""
    return f"clean_{facts['measure']}"


def _stored(model: SourceModel, dtype: torch.dtype) -> dict[str, Tensor]:
    tensors = model.network.state_dict().items()
    return {
        k: (v.to(dtype) if v.is_floating_point() else v).cpu().contiguous().clone()
        for k, v in tensors
    }


def _metadata(model: SourceModel, record: dict[str, Any]) -> dict[str, str]:
    """The metadata of a file of weights: normalisation of its images, and its origin."""
    given = model.preprocessing
    noted = {"mean": list(given.mean), "std": list(given.std)}
    if given.size is not None:
        noted["input_size"] = [3, *given.size]
    kept = ("model", "benchmark", clean_key(record), "seed", "sha256")
    return {"format": "pt", RECORD: json.dumps(noted | {k: record[k] for k in kept})}


def card(record: dict[str, Any], preprocessing_text: str) -> str:
    """The model card of a record, in Markdown."""
    recipe, tested, measure = record["recipe"], record["data"]["test"], record["measure"]
    epochs = [
        f"| {number} | {epoch['loss']:.4f} | "
        + ("–" if epoch[measure] is None else f"{epoch[measure]:.2f}")
        + " |"
        for number, epoch in enumerate(record["history"], 1)
    ]
    return CARD.format(
        **record,
        title=TITLES[measure],
        clean=record[clean_key(record)],
        on="of" if measure == "accuracy" else "on",
        preprocessing_text=preprocessing_text,
        measured_on=f"{tested:,} test images" if tested else "the training images: no test set",
        start_text=f" and of `{recipe['start']}`" if recipe["start"] else "",
        recipe_rows="\n".join(f"| {k} | {'–' if v == '' else v} |" for k, v in recipe.items()),
        epoch_rows="\n".join(epochs),
    )
