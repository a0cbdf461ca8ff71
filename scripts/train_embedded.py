"""Train the two embedded source models on Fashion-MNIST and write them with their card.

    python scripts/train_embedded.py fashion_cnn --data /usr/share/datasets/fashion-mnist
    python scripts/train_embedded.py fashion_vit --data ~/data/FashionMNIST/raw
    python scripts/train_embedded.py images       # the test and source images in the package
    python scripts/train_embedded.py card         # embedded/CARD.md from what the trainings wrote

The ViT learns from the labels and from the CNN's predictions in equal parts (a transformer of this
size needs that, or many more epochs), so the CNN comes first. `--data` holds the four idx files,
plain or gzipped (Debian's package dataset-fashion-mnist, or the `raw` folder of torchvision's
FashionMNIST). Same seed and versions give the same weights.
"""

import argparse
import gzip
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from ctta_bench.datasets.fashion_models import EMBEDDED, MEAN, STD
from ctta_bench.registry import MODELS

RECIPES = {
    "fashion_vit": {
        "epochs": 10,
        "batch": 64,
        "lr": 1e-3,
        "weight_decay": 0.03,
        "teacher": "fashion_cnn",
    },
    "fashion_cnn": {"epochs": 6, "batch": 64, "lr": 2e-3, "weight_decay": 0.02, "teacher": ""},
}


def read_idx(folder: Path, stem: str) -> np.ndarray:
    """One idx file as an array; `stem` as in `train-images-idx3-ubyte`."""
    packed = folder / f"{stem}.gz"
    raw = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / stem).read_bytes()
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def load(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images uint8 [n, 32, 32] (28 padded with zeros) and labels int64 [n]; split train or t10k."""
    images = read_idx(folder, f"{split}-images-idx3-ubyte")
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    labels = read_idx(folder, f"{split}-labels-idx1-ubyte")
    return torch.from_numpy(padded), torch.from_numpy(labels.astype(np.int64))


def to_input(images: Tensor) -> Tensor:
    """uint8 [n, 32, 32] to normalised float [n, 3, 32, 32]."""
    scaled = (images.float() / 255 - MEAN[0]) / STD[0]
    return scaled.unsqueeze(1).expand(-1, 3, -1, -1)


def soft_targets(images: Tensor, labels: Tensor, teacher: str) -> Tensor:
    """Target distributions [2, n, 10] of the images and of their mirror images.

    One-hot labels; with a teacher, their mean with the trained teacher's probabilities.
    """
    hard = one_hot(labels, 10).float().expand(2, -1, -1)
    if not teacher:
        return hard
    network = MODELS.get(teacher)().eval()
    weights = load_file(EMBEDDED / f"{teacher}.safetensors")
    network.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in weights.items()}
    )
    with torch.no_grad():
        soft = [
            torch.cat([network(to_input(x)).softmax(-1) for x in view.split(500)])
            for view in (images, images.flip(-1))
        ]
    return (hard + torch.stack(soft)) / 2


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Accuracy in % over all images, in evaluation mode."""
    network.eval()
    hits = sum(
        int((network(to_input(x)).argmax(1) == y).sum())
        for x, y in zip(images.split(500), labels.split(500), strict=True)
    )
    return 100 * hits / len(labels)


def train(name: str, data: Path, seed: int, epochs: int) -> None:
    """Train one model and write `embedded/NAME.safetensors` and `embedded/NAME.json`."""
    recipe = RECIPES[name] | {"epochs": epochs or RECIPES[name]["epochs"]}
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    images, labels = load(data, "train")
    test = load(data, "t10k")
    targets = soft_targets(images, labels, recipe["teacher"])
    network = MODELS.get(name)()
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=recipe["lr"], weight_decay=recipe["weight_decay"]
    )
    steps = math.ceil(len(images) / recipe["batch"]) * recipe["epochs"]
    warm_up = steps // 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: (
            (i + 1) / warm_up
            if i < warm_up
            else 0.5 * (1 + math.cos(math.pi * (i - warm_up) / (steps - warm_up)))
        ),
    )
    began = time.monotonic()
    for epoch in range(recipe["epochs"]):
        network.train()
        total = 0.0
        for index in torch.randperm(len(images), generator=generator).split(recipe["batch"]):
            # Mirroring is the only augmentation: nothing that resembles a test corruption.
            mirrored = torch.rand(len(index), generator=generator) < 0.5
            batch = torch.where(mirrored[:, None, None], images[index].flip(-1), images[index])
            loss = cross_entropy(network(to_input(batch)), targets[mirrored.long(), index])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(index)
        print(
            f"epoch {epoch + 1:2d}  loss {total / len(images):.4f}  "
            f"test accuracy {accuracy(network, *test):.2f} %  {time.monotonic() - began:.0f} s",
            flush=True,
        )
    # Half precision halves the package; the accuracy below is that of the rounded weights.
    weights = {k: v.half() if v.is_floating_point() else v for k, v in network.state_dict().items()}
    network.load_state_dict(weights)
    card = {
        "model": name,
        "parameters": sum(p.numel() for p in network.parameters()),
        "data": "Fashion-MNIST, 60,000 training images, 28x28 zero-padded to 32x32",
        "augmentation": "horizontal flip",
        "recipe": recipe | {"optimizer": "AdamW", "schedule": "5 % linear warm-up, cosine to 0"},
        "seed": seed,
        "clean_accuracy": round(accuracy(network, *test), 2),
        "torch": torch.__version__,
    }
    file = EMBEDDED / f"{name}.safetensors"
    save_file({k: v.contiguous() for k, v in weights.items()}, file)
    file.chmod(0o644)  # safetensors writes it for its owner alone
    (EMBEDDED / f"{name}.json").write_text(json.dumps(card, indent=2) + "\n")
    print(json.dumps(card, indent=2))


def first_of_each_class(labels: Tensor, count: int) -> Tensor:
    """Indices of the first `count` images of each class, in ascending order."""
    picks = [torch.nonzero(labels == c).flatten()[:count] for c in range(10)]
    return torch.cat(picks).sort().values


def write_images(data: Path) -> None:
    """Write the embedded images: 200 test and 100 training images a class, grey uint8 28x28."""
    for split, count, name in (("t10k", 200, "test"), ("train", 100, "source")):
        images, labels = load(data, split)
        chosen = first_of_each_class(labels, count)
        np.savez_compressed(
            EMBEDDED / f"fashion_{name}.npz",
            images=images[chosen][:, 2:30, 2:30].numpy(),
            labels=labels[chosen].numpy().astype(np.uint8),
        )


def write_card() -> None:
    """Write embedded/CARD.md: images, models, recipes, accuracy, licence."""
    cards = [json.loads((EMBEDDED / f"{name}.json").read_text()) for name in RECIPES]
    rows = "\n".join(
        f"| `{c['model']}` | {c['parameters']:,} | {c['recipe']['epochs']} epochs, batch "
        f"{c['recipe']['batch']}, {c['recipe']['optimizer']} {c['recipe']['lr']:g}, weight decay "
        f"{c['recipe']['weight_decay']:g}, {c['recipe']['schedule']} | "
        f"{c['recipe']['teacher'] or '–'} | {c['seed']} | {c['clean_accuracy']:.2f} % |"
        for c in cards
    )
    (EMBEDDED / "CARD.md").write_text(CARD.format(rows=rows, **cards[0]), encoding="utf-8")


CARD = """# The embedded benchmark: images and source models

**Images.** Fashion-MNIST, (c) 2017 Zalando SE, MIT licence: grey photographs of ten kinds of
clothing, 28x28. `fashion_test.npz` holds 2,000 test images (the first 200 of each class in the
order of the test set), `fashion_source.npz` 1,000 training images (the first 100 of each class).
They are zero-padded to 32x32 and repeated to three channels when loaded.

**Corruptions.** The fifteen of Hendrycks and Dietterich, and their four hold-out ones, with the
CIFAR parameters, made on first use (`datasets/corruptions.py`), deterministically per image.

**Source models.** Trained by `scripts/train_embedded.py` on {data}.
Augmentation: {augmentation}, so nothing that resembles a test corruption. Input is normalised with
mean and std 0.5. Weights are stored in half precision; the accuracy is that of the stored weights
on all 10,000 test images. A teacher's probabilities count half in the targets. Made with torch
{torch}.

| model | parameters | recipe | teacher | seed | clean accuracy |
| --- | ---: | --- | --- | --- | ---: |
{rows}

`fashion_vit` is a timm VisionTransformer (patch 4, width 96, depth 4, 4 heads, LayerNorm) whose
patch embedding is two 3x3 convolutions. `fashion_cnn` has six 3x3 convolutions with BatchNorm.
Neither is meant for anything but this benchmark: small, quick, and fragile under corruptions.
"""


def main() -> None:
    """Parse the command line and do the one thing asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=[*RECIPES, "images", "card"])
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more are hardly faster")
    parser.add_argument("--epochs", type=int, default=0, help="instead of the recipe's")
    arguments = parser.parse_args()
    EMBEDDED.mkdir(exist_ok=True)
    torch.set_num_threads(arguments.threads)
    if arguments.what == "images":
        write_images(arguments.data)
    elif arguments.what == "card":
        write_card()
    else:
        train(arguments.what, arguments.data, arguments.seed, arguments.epochs)


if __name__ == "__main__":
    main()
