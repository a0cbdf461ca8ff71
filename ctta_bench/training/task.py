"""The task of a training: images, recipe, and the network with its initial weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ctta_bench.errors import ConfigError, DataError
from ctta_bench.model import SourceModel, find_classifier
from ctta_bench.model.preprocessing import Regime, recorded_preprocessing
from ctta_bench.source_models.pretrained import build, load_source_model
from ctta_bench.stream import Benchmark, ImageSet, MapSet
from ctta_bench.training.recipes import Recipe


@dataclass(frozen=True)
class Task:
    """A model, its recipe and its images; `test` is None if there are no clean test images."""

    benchmark: str
    model: str
    recipe: Recipe
    train: ImageSet
    test: ImageSet | None
    num_classes: int
    seed: int = 0
    regime: Regime = "true"
    weights: Path | None = None  # file with the weights of the model to start from
    root: Path | None = None  # data root, which is searched for weights


def task_for(
    benchmark: Benchmark, model: str, recipe: Recipe, folder: Path | None = None, **choices: Any
) -> Task:
    """The task of training `model` on a benchmark's training images.

    folder: optional folder with these images. choices: further fields of Task. Raises DataError if
    the images are missing.
    """
    train, test = benchmark.training_sets(folder)
    classes = benchmark.num_classes
    return Task(benchmark.name, model, recipe, train, test, classes, root=benchmark.root, **choices)


def first_model(task: Task) -> SourceModel:
    """The model before training: with random weights, or those of the recipe's `start`.

    A last layer of another number of classes is not copied; all other weights must fit.
    """
    network = build(task.model, task.num_classes)
    classifier = _last_layer(task, network)
    if task.recipe.start:
        start = load_source_model(task.recipe.start, weights=task.weights, root=task.root)
        copy_body(start.network, network, classifier, task.recipe.start)
    elif task.weights is not None:
        raise ConfigError("--weights: this recipe starts from random weights (see --set start=).")
    return SourceModel(
        network, name=task.model, preprocessing=recorded_preprocessing(network, task.regime)
    )


def _last_layer(task: Task, network: Any) -> nn.Linear | None:
    """The last layer of a classifier; None for a network for segmentation.

    Raises ConfigError for a model of another task or another number of classes.
    """
    dense = isinstance(task.train, MapSet)
    if dense != (getattr(network, "task", "classification") == "segmentation"):
        wanted = "segmentation" if dense else "classification"
        raise ConfigError(
            f"model {task.model} does not support {wanted}, the task of {task.benchmark}; choose "
            "another --model."
        )
    classifier = None if dense else find_classifier(network)
    number = network.num_classes if dense else getattr(classifier, "out_features", "no")
    if number != task.num_classes:
        raise ConfigError(
            f"model {task.model} has {number} classes, but {task.benchmark} has "
            f"{task.num_classes}; choose another --model."
        )
    return classifier


def copy_body(
    start: nn.Module, network: nn.Module, classifier: nn.Linear | None, name: str
) -> None:
    """Copy all weights of `start` into `network`, except a classifier of another size.

    Raises DataError if the others do not fit.
    """
    head = {id(parameter) for parameter in classifier.parameters()} if classifier else set()
    ours, theirs = network.state_dict(keep_vars=True), dict(start.state_dict())
    left_out = {k for k, v in ours.items() if id(v) in head and k in theirs}
    left_out = {k for k in left_out if theirs[k].shape != ours[k].shape}
    odd = sorted(theirs.keys() ^ ours.keys())
    odd += [
        k for k in ours if k in theirs and k not in left_out and ours[k].shape != theirs[k].shape
    ]
    if odd:
        raise DataError(f"recipe: {name} does not fit the model: {', '.join(odd[:5])}.")
    network.load_state_dict({k: v for k, v in theirs.items() if k not in left_out}, strict=False)
