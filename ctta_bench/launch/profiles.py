"""Profiles: what a cluster asks for, as YAML; in the project, in the user's folder, or by path."""

import difflib
import os
from pathlib import Path
from typing import Annotated, Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ctta_bench.config.validation import validate
from ctta_bench.config.yaml import read_yaml
from ctta_bench.errors import ConfigError

# One line of printable text: a line break would end the line of a job script that holds it.
PrintableText = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Profile(BaseModel):
    """What a job asks Slurm for, and how cells become jobs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: PrintableText | None = None
    account: PrintableText | None = None
    qos: PrintableText | None = None
    constraint: PrintableText | None = None
    gres: PrintableText | None = Field(None, description="generic resources, e.g. gpu:a100:1")
    gpus: int | None = Field(None, ge=0, description="accelerators a job")
    cpus: int = Field(1, ge=1, description="cores a job; its threads")
    memory_gb: float | None = Field(None, gt=0, description="memory a job; the cluster's default")
    time_minutes: int = Field(60, ge=1, description="wall time of a job")
    signal_seconds: int | None = Field(
        None,
        ge=1,
        description="how long before its end a job is signalled; a fifth of it, at most 90",
    )
    exclude: PrintableText | None = Field(None, description="nodes to stay away from")
    parallel: int | None = Field(
        None, ge=1, description="jobs at once; as many as the cluster runs"
    )
    requeue: bool = Field(True, description="queue a job again that was stopped by a signal")
    cells_per_job: int = Field(1, ge=1, description="cells packed into one job, one after another")
    max_array: int | None = Field(None, ge=1, description="jobs an array; as the cluster says")
    setup: tuple[PrintableText, ...] = Field(
        (), description="shell lines before the work, yours to answer for"
    )
    environment: dict[Name, PrintableText] = Field(
        {}, description="variables of the work; no secrets"
    )
    options: dict[PrintableText, PrintableText | int | bool] = Field(
        {}, description="further options of sbatch"
    )

    @property
    def lead_seconds(self) -> int:
        """How long before its end a job is signalled to stop; it fits the wall time."""
        return self.signal_seconds or min(90, max(5, self.time_minutes * 60 // 5))


def folders() -> list[Path]:
    """Where profiles are looked for: the project's folder first."""
    user = Path(platformdirs.user_config_dir("ctta-bench")) / "profiles"
    return [Path("profiles"), Path(".ctta-bench"), user]


def load_profile(name_or_file: str) -> Profile:
    """A profile by name or path. Raises ConfigError that says where was looked."""
    file = Path(name_or_file)
    if file.suffix not in (".yaml", ".yml") and os.sep not in name_or_file:
        known = {f.stem: f for folder in reversed(folders()) for f in sorted(folder.glob("*.yaml"))}
        if name_or_file not in known:
            close = difflib.get_close_matches(name_or_file, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(
                f"unknown profile {name_or_file!r}; {hint}Looked for {name_or_file}.yaml in "
                f"{', '.join(map(str, folders()))}."
            )
        file = known[name_or_file]
    return validate(Profile, read_yaml(file), str(file))


def parameters_of(profile: Profile) -> dict[str, Any]:
    """Parameters for submitit; nothing in it passes through a shell but the setup lines."""
    asked: dict[str, Any] = {
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "gres": profile.gres,
        "gpus_per_node": profile.gpus,
        "exclude": profile.exclude,
        "mem": None if profile.memory_gb is None else f"{int(profile.memory_gb * 1024)}MB",
        "setup": list(profile.setup) or None,
    }
    return {key: value for key, value in asked.items() if value is not None} | {
        "cpus_per_task": profile.cpus,
        "time": profile.time_minutes,
        "signal_delay_s": profile.lead_seconds,
        "stderr_to_stdout": True,
        "additional_parameters": {"requeue" if profile.requeue else "no-requeue": True}
        | dict(profile.options),
    }
