"""DeYO: Jhyun17/DeYO and mariodoebler's, with recorded orders of blocks or pixels."""

import math
from typing import Any

from torch import Tensor

from ctta_bench.methods.official import Case, Recorded, Translation, mario_optimizer, optimizer

CLASSES = 10  # of the small models; the margins of the official code are in nats
# The official code skips blocks 9 to 11 by name; the small models have four, and skip none.
NO_BLOCK_SKIPPED = {"skip_last_blocks": 0}
DESTRUCTIONS = {"patch": "blocks", "pixel": "pixels", "occ": "middle"}


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code, whose recorded margins have eight digits."""
    settings = case["hyper_parameters"]
    return (
        NO_BLOCK_SKIPPED
        | optimizer(settings["optimizer"])
        | {
            "max_entropy": round(settings["deyo_margin"] / math.log(CLASSES), 6),
            "margin": round(settings["margin_e0"] / math.log(CLASSES), 6),
            "min_drop": settings["plpd_threshold"],
            "destruction": DESTRUCTIONS[settings["aug_type"]],
            "blocks_per_side": settings.get("patch_len", 4),
        }
    )


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation and, where unset, its defaults."""
    cfg = case["hyper_parameters"]["cfg"]
    return (
        NO_BLOCK_SKIPPED
        | mario_optimizer(cfg)
        | {
            "max_entropy": cfg.get("DEYO.MARGIN", 0.5),
            "margin": cfg.get("EATA.MARGIN_E0", 0.4),
            "min_drop": cfg.get("DEYO.PLPD", 0.2),
            "destruction": DESTRUCTIONS[cfg["DEYO.AUG_TYPE"]],
            "blocks_per_side": cfg.get("DEYO.PATCH_LEN", 4),
        }
    )


class RecordedOrders:
    """The recorded permutations, one draw per batch."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.batch = recorded, 0

    def __call__(self, rows: int, length: int) -> Tensor:
        """The permutations of the next batch, int64 [rows, length]."""
        blocks = self.recorded.get(f"aux/permutation_{self.batch}")
        pixels = self.recorded.get(f"aux/pixel_permutation_{self.batch}")
        self.batch += 1
        order = pixels[None] if blocks is None and pixels is not None else blocks
        assert order is not None and order.shape == (rows, length)
        return order.long()


def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded permutations."""
    method.draw_orders = RecordedOrders(recorded)


TRANSLATIONS = (
    Translation("Jhyun17/DeYO", "deyo.py: DeYO", "deyo", official, set_initial_state),
    Translation(
        "mariodoebler/test-time-adaptation",
        "methods/deyo.py: DeYO",
        "deyo",
        mario,
        set_initial_state,
    ),
)
