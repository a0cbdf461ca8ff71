"""ReservoirTTA: LTS5/ReservoirTTA over TENT and EATA, with a small recorded style network."""

import random
from typing import Any

import torch

from ctta_bench.methods.official import Case, Recorded, Translation, mario_optimizer
from ctta_bench.parts.style import StyleNetwork

STYLES, BATCH = 4, 16  # of the source images


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code. The random style network is replaced by the recorded one."""
    settings = case["hyper_parameters"]
    cfg, form = settings["cfg"], settings["form"]
    host = {"host": form}
    if form == "eata":
        host |= {
            "fisher_weight": cfg["EATA.FISHER_ALPHA"],
            "max_similarity": cfg["EATA.D_MARGIN"],
            "margin": cfg["EATA.MARGIN_E0"],
        }
    return (
        mario_optimizer(cfg)
        | host
        | {
            "max_models": settings["max_models"],
            "buffer_size": settings["buffer"],
            "quantile": settings["quantile"],
            "ensembling": settings["ensembling"],
            "sampling": settings["sampling"],
            "start": settings["init"],
            "progressive": settings["progressive"],
            "source_buffer": settings["source_buffer"],
            "source_styles": STYLES,
            "style_batch_size": BATCH,
            "style_network": "random",
            "faithful": True,
        }
    )


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """The recorded style network, the source styles by it, and the recorded draws."""
    stored = {
        name.removeprefix("aux/start/style/"): value
        for name, value in recorded.items()
        if name.startswith("aux/start/style/")
    }
    network = StyleNetwork([stored[f"{place}.bias"].numel() for place in (0, 2, 5, 7)])
    network.features.load_state_dict(stored)
    method.set_style_network(network)
    before = random.Random(0)  # the seed of the draws before the stream, which are not recorded
    method.draw = lambda most: before.randint(0, most)
    styles = [method.style(images) for images in recorded["source_images"].split(BATCH)]
    method.learn_styles(torch.stack(styles))
    draws = [draw for after in case["per_batch"] for draw in after["drawn"]]
    found = iter(draws)

    def drawn(most: int) -> int:
        low, high, value = next(found)
        assert (low, high) == (0, most)
        return int(value)

    method.draw = drawn


TRANSLATIONS = (
    Translation(
        "LTS5/ReservoirTTA",
        "_ReservoirTTA",
        "reservoir",
        official,
        set_initial_state,
        facts=frozenset({"style_seed", "threshold_factor"}),
    ),
)
