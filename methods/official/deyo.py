"""DeYO: Jhyun17/DeYO and mariodoebler's, with recorded orders of blocks or pixels."""

import math
from typing import Any

from torch import Tensor

from ctta_bench.methods.official import (
    Case,
    Recorded,
    Settings,
    Translation,
    mario_optimizer,
    optimizer,
)

CLASSES = 10  # of the small models; the margins of the official code are in nats
# The official code skips blocks 9 to 11 by name; the small models have four, and skip none.
NO_BLOCK_SKIPPED = {"skip_last_blocks": 0}
DESTRUCTIONS = {"patch": "blocks", "pixel": "pixels", "occ": "middle"}
OCCLUSION = ("size", "row", "column")


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code."""
    settings = case["hyper_parameters"]
    limit, drop = settings["deyo_margin"], settings["plpd_threshold"]
    return (
        NO_BLOCK_SKIPPED
        | optimizer(settings["optimizer"])
        | destruction(
            settings.choose("aug_type", DESTRUCTIONS),
            [settings.get(name) for name in ("occlusion_size", "row_start", "column_start")],
        )
        | {
            # Without the filters the official code compares with ln 1000, and with -2.
            "max_entropy": share(limit if settings.get("filter_ent", 1) else math.log(1000)),
            "margin": share(settings["margin_e0"]),
            "min_drop": drop if settings.get("filter_plpd", 1) else -1.0,
            "blocks_per_side": settings.get("patch_len", 4),
            "weigh_by_entropy": bool(settings.get("reweight_ent", 1)),
            "weigh_by_drop": bool(settings.get("reweight_plpd", 1)),
        }
    )


def share(nats: float) -> float:
    """Nats as a share of ln C; recorded nats have eight digits, and most shares have two."""
    exact = nats / math.log(CLASSES)
    return round(exact, 4) if math.isclose(exact, round(exact, 4), abs_tol=1e-8) else exact


def destruction(kind: str, occlusion: list[Any]) -> dict[str, Any]:
    """The kind of destruction and, for a covered square, its side, first row and first column."""
    names = [f"occlusion_{name}" for name in OCCLUSION] if kind == "middle" else []
    return {"destruction": kind} | dict(zip(names, occlusion, strict=False))


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation and, where unset, its defaults."""
    cfg: Settings = case["hyper_parameters"]["cfg"]
    return (
        NO_BLOCK_SKIPPED
        | mario_optimizer(cfg)
        | destruction(
            cfg.choose("DEYO.AUG_TYPE", DESTRUCTIONS) if "DEYO.AUG_TYPE" in cfg else "blocks",
            [
                cfg.get("DEYO.OCCLUSION_SIZE", 112),
                cfg.get("DEYO.ROW_START", 56),
                cfg.get("DEYO.COLUMN_START", 56),
            ],
        )
        | {
            "max_entropy": cfg.get("DEYO.MARGIN", 0.5),
            "margin": cfg.get("EATA.MARGIN_E0", 0.4),
            "min_drop": cfg.get("DEYO.PLPD", 0.2),
            "blocks_per_side": cfg.get("DEYO.PATCH_LEN", 4),
            "weigh_by_entropy": cfg.get("DEYO.REWEIGHT_ENT", True),
            "weigh_by_drop": cfg.get("DEYO.REWEIGHT_PLPD", True),
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
