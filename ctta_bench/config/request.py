"""The request of a cell: the options of options.py, with their values checked."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ctta_bench.config.options import CellOptions, cell_options


class CellRequest(CellOptions, BaseModel):
    """One cell as a user requests it; `set` overrides any resolved value.

    Example: `CellRequest(method="tent", benchmark="fashion_c", set={"lr": 1e-3})`. Raises
    pydantic's ValidationError for an unknown key or a wrong value, `config.validation.validate` a
    ConfigError instead.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: str = "runs"
    not_in_paper: str = ""  # what was chosen because the paper that is remade is silent


def recorded_options(request: CellRequest, when: Literal["always", "changed"]) -> dict[str, Any]:
    """The options that a cell's record has under their own names: always, or only if changed."""
    recorded = [n for n, declared in cell_options().items() if declared.option.record == when]
    default = {name: CellRequest.model_fields[name].default for name in recorded}
    values = {name: getattr(request, name) for name in recorded}
    return {k: v for k, v in values.items() if when == "always" or v != default[k]}
