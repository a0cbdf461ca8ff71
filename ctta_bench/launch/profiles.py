"""Profiles of clusters as YAML files: in the project, in the user's folder, or by path."""

import difflib
import os
from pathlib import Path
from typing import Annotated, Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, model_validator

from ctta_bench.config.validation import validate
from ctta_bench.config.yaml import read_yaml
from ctta_bench.errors import ConfigError

# One line of printable text: a line break would end its line in the job script.
PrintableText = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Profile(BaseModel):
    """The resources of a Slurm job, and how cells are packed into jobs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: PrintableText | None = None
    account: PrintableText | None = None
    qos: PrintableText | None = None
    constraint: PrintableText | None = None
    gres: PrintableText | None = Field(None, description="generic resources, e.g. gpu:a100:1")
    gpus: int | None = Field(None, ge=0, description="GPUs per job")
    gpu_memory_gb: float | None = Field(
        None, gt=0, description="memory of one GPU in GB; cells that need more are refused"
    )
    cpus: int = Field(1, ge=1, description="cores per job, also its number of threads")
    memory_gb: float | None = Field(
        None, gt=0, description="memory per job in GB; default: the cluster's; a list: by attempt"
    )
    time_minutes: int = Field(
        60, ge=1, description="wall time per job in minutes; a list: by attempt"
    )
    signal_seconds: int | None = Field(
        None,
        ge=1,
        description="seconds before its end at which a job gets a signal; default: a fifth of the "
        "wall time, at most 90",
    )
    exclude: PrintableText | None = Field(None, description="nodes to avoid")
    parallel: int | None = Field(
        None, ge=1, description="jobs that run at the same time; default: no limit of our own"
    )
    requeue: bool = Field(True, description="requeue a job that a signal stopped")
    cells_per_job: int | None = Field(
        None, ge=1, description="cells per job; default: one for each of its workers"
    )
    cells_per_gpu: int = Field(1, ge=1, description="cells that share a GPU of a job")
    workers_per_job: int | None = Field(
        None,
        ge=1,
        description="cells that run at the same time in a job; default: cells_per_gpu for each of "
        "its gpus, else 1",
    )
    max_array: int | None = Field(
        None, ge=1, description="jobs per array; default: the cluster's limit"
    )
    setup: tuple[PrintableText, ...] = Field(
        (), description="shell lines before the job's command; they are not checked"
    )
    environment: dict[Name, PrintableText] = Field(
        {}, description="environment variables of the job; they are stored, so no secrets"
    )
    options: dict[PrintableText, PrintableText | int | bool] = Field(
        {}, description="further options of sbatch"
    )

    _later: tuple["Profile", ...] = PrivateAttr(())

    def at(self, attempt: int) -> "Profile":
        """The profile of an attempt, from 0: memory and time may grow."""
        if not self._later or attempt == 0:
            return self
        later = self._later[min(attempt, len(self._later)) - 1]
        return later.model_copy(update={"parallel": self.parallel})

    @property
    def workers(self) -> int:
        """Workers of a job: they share its list of cells, its cores and its GPUs."""
        return self.workers_per_job or max(1, (self.gpus or 0) * self.cells_per_gpu)

    @property
    def cells(self) -> int:
        """Cells of a job."""
        return self.cells_per_job or self.workers

    @model_validator(mode="after")
    def _workers_fit(self) -> "Profile":
        if self.cells < self.workers:
            raise ValueError(
                f"cells_per_job: {self.cells} is less than the {self.workers} workers of a job, "
                "and some would have nothing to do; give more cells or fewer workers_per_job"
            )
        places = (self.gpus or 0) * self.cells_per_gpu
        if self.gpus and self.workers > places:
            raise ValueError(
                f"workers_per_job: {self.workers} workers need more than the {places} places of "
                f"{self.gpus} GPUs; raise cells_per_gpu or gpus, or lower workers_per_job"
            )
        return self

    @property
    def lead_seconds(self) -> int:
        """Seconds before its end at which a job gets a signal to stop."""
        return self.signal_seconds or min(90, max(5, self.time_minutes * 60 // 5))


def folders() -> list[Path]:
    """The folders that are searched for profiles, the project's folder first."""
    user = Path(platformdirs.user_config_dir("ctta-bench")) / "profiles"
    return [Path("profiles"), Path(".ctta-bench"), user]


def load_profile(name_or_file: str) -> Profile:
    """Load a profile by name or path. Raises ConfigError with the searched folders."""
    file = Path(name_or_file)
    if file.suffix not in (".yaml", ".yml") and os.sep not in name_or_file:
        known = {f.stem: f for folder in reversed(folders()) for f in sorted(folder.glob("*.yaml"))}
        if name_or_file not in known:
            close = difflib.get_close_matches(name_or_file, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(
                f"unknown profile {name_or_file!r}; {hint}Searched {name_or_file}.yaml in "
                f"{', '.join(map(str, folders()))}."
            )
        file = known[name_or_file]
    values = read_yaml(file)
    first, *later = (
        validate(Profile, _of_attempt(values, n), str(file), file) for n in range(_attempts(values))
    )
    first._later = tuple(later)
    return first


GROWING = ("memory_gb", "time_minutes")  # may be a list, with a value for each attempt


def _attempts(values: Any) -> int:
    lists = [values.get(key) for key in GROWING] if isinstance(values, dict) else []
    return max([1, *(len(value) for value in lists if isinstance(value, list))])


def _of_attempt(values: Any, attempt: int) -> Any:
    """The values of a profile for one attempt; the last value of a list is for all later ones."""
    if not isinstance(values, dict):
        return values
    lists = {k: v for k, v in values.items() if k in GROWING and isinstance(v, list) and v}
    return values | {key: value[min(attempt, len(value) - 1)] for key, value in lists.items()}


def parameters_of(profile: Profile) -> dict[str, Any]:
    """Parameters for submitit; only the setup lines are run by a shell."""
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
        # One task, whatever the caller's environment says.
        "srun_args": ["--nodes=1", "--ntasks=1", f"--cpus-per-task={profile.cpus}"],
        "additional_parameters": {
            "ntasks": 1,
            "requeue" if profile.requeue else "no-requeue": True,
            **profile.options,
        },
    }
