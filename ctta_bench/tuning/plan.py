"""The plan of a search: benchmark, budget, seed, and the hold-out domains that it runs on."""

import shlex
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ctta_bench.config.validation import validate
from ctta_bench.errors import ConfigError
from ctta_bench.registry import BENCHMARKS

Values = dict[str, Any]


class Plan(BaseModel):
    """A search without its methods; the same plan gives the same trials on any machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    benchmark: str
    model: str | None = None
    preset: str = Field("default", description="values of trial 0, and of what is not searched")
    search: Literal["random", "grid"] = "random"
    budget: int = Field(10, ge=1, description="trials per method, including trial 0")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of random trials")
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="seeds of each trial's cells")
    earlier: Path | None = Field(None, description="an earlier search, whose best trials run again")
    finalists: int = Field(4, ge=2, description="its trials that run again, with trial 0")
    plugins: tuple[str, ...] = Field((), description="files and modules that register methods")
    set: Values = Field(
        {}, description="settings of the stream, and fixed hyper-parameters, which are not searched"
    )

    @property
    def name(self) -> str:
        """Name of the experiment, and of its folder."""
        return f"tune_{self.benchmark}" + (f"_{self.model}" if self.model else "")

    @property
    def key(self) -> str:
        """The key in preset files for this benchmark and model."""
        own = self.model in (None, BENCHMARKS.get(self.benchmark).default_model)
        return self.benchmark if own else f"{self.benchmark}@{self.model}"

    def benchmark_of(self, data_root: Path | None = None) -> Any:
        """The benchmark with the settings of the plan. Raises ConfigError for wrong ones."""
        entry = BENCHMARKS.get(self.benchmark)
        settings = {k.removeprefix("benchmark."): v for k, v in self.set.items()}
        own = {k: v for k, v in settings.items() if k in entry.Settings.model_fields}
        return entry(validate(entry.Settings, own, f"benchmark {self.benchmark}"), data_root)

    def command(self, method: str) -> str:
        """The command that runs this search for one method."""
        set = [f"--set {key}={_plain(value)}" for key, value in self.set.items()]
        words = [f"ctta-bench tune {method} --benchmark {self.benchmark}"]
        words += [f"--plugin {plugin}" for plugin in self.plugins]
        words += [f"--model {self.model}"] if self.model else []
        words += [f"--preset {self.preset}"] if self.preset != "default" else []
        words += [f"--search {self.search}"] if self.search != "random" else []
        if self.earlier:
            words += [f"--earlier {shlex.quote(str(self.earlier))} --finalists {self.finalists}"]
        else:
            words += [f"--budget {self.budget} --seed {self.seed}"]
        words += [f"--seeds {','.join(map(str, self.seeds))}"] if self.seeds != (0,) else []
        return " ".join([*words, *set])


def _plain(value: Any) -> str:
    text = str(value).replace("'", "")
    return text.replace(", ", ",") if isinstance(value, list) else text


def hold_out(plan: Plan, data_root: Path | None = None) -> tuple[str, ...]:
    """The domains that trials run on: those of the plan, or all hold-out domains.

    Raises ConfigError for a test domain, and for a benchmark without hold-out domains.
    """
    built = plan.benchmark_of(data_root)
    all_held_out = built.hold_out_domains()
    chosen = built.chosen_domains() if built.settings.domains else ()
    if not all_held_out:
        raise ConfigError(
            f"benchmark {plan.benchmark!r} has no hold-out domains: hyper-parameters cannot be "
            "chosen on it."
        )
    for name in chosen:
        if name in built.domain_names():
            raise ConfigError(
                f"{name!r} is a test domain of {plan.benchmark}: choose hyper-parameters on "
                f"hold-out domains only ({', '.join(all_held_out)})."
            )
    return chosen or all_held_out
