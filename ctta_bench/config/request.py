"""The request of a cell: its options, as declared, with their values checked."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ctta_bench.config.options import CellOptions, cell_options


class CellRequest(CellOptions, BaseModel):
    """One cell as a user asks for it; `set` overrides any resolved key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: str = "runs"


def recorded_options(request: CellRequest, when: Literal["always", "changed"]) -> dict[str, Any]:
    """What of a request stands in a cell's record under its own name: always, or if changed."""
    recorded = [n for n, declared in cell_options().items() if declared.option.record == when]
    default = {name: CellRequest.model_fields[name].default for name in recorded}
    values = {name: getattr(request, name) for name in recorded}
    return {k: v for k, v in values.items() if when == "always" or v != default[k]}
