"""What a run leaves on disk: names of files, version, types, and which keys decide its numbers.

A run folder holds one cell, or the warm-up that cells start from. No other module spells a name of
a file or lists keys of a record. Only the standard library is needed here.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypedDict

SCHEMA_VERSION = 1

# -- files of a run folder

CELL_FILE = "cell.yaml"  # the resolved configuration: a CellRecord
BATCHES_FILE = "batches.jsonl"  # a BatchLine a batch, appended; of a warm-up a line an update
PREDICTIONS_FILE = "predictions.npz"  # per image, in stream order
PICTURES_FILE = "pictures.npz"  # of segmentation: a few images with labels and predictions
RESULT_FILE = "result.json"  # a ResultRecord, written last; its presence means done
ENVIRONMENT_FILE = "env.json"  # versions, device, time
STATE_FILE = "state.pt"  # newest checkpoint
PREVIOUS_STATE_FILE = "state.previous.pt"  # the one before; both are removed when done
MODELS_FOLDER = "models"  # adapted networks, if they are asked for (run/export.py)
LEARNT_FILE = "warmup.safetensors"  # of a warm-up: what was learnt
FAILURE_FILE = "failed.json"  # a FailureRecord: why the last attempt failed
ATTEMPTS_FILE = "attempts.json"  # the attempts that did not end well, each an AttemptRecord
LOG_FILE = "log.txt"  # what was said
LOCK_FILE = ".lock"  # locked by the process that writes
OWNER_FILE = "cell.lock.json"  # who that is, an OwnerRecord, renewed while it lives

STATE_FILES = (STATE_FILE, PREVIOUS_STATE_FILE)
OWNER_FILES = (LOCK_FILE, OWNER_FILE)  # of the process that writes, not of what it writes
# A folder that has one of these without a CELL_FILE was a run folder.
SIGNS_OF_A_RUN = (BATCHES_FILE, PREDICTIONS_FILE, RESULT_FILE, ENVIRONMENT_FILE, STATE_FILE)

# -- files of a report (`ctta-bench report`)

PAGE_FILE = "index.html"
RESULTS_TABLE_FILE = "results.csv"

# -- files that `ctta-bench cost` writes

COST = "cost"  # their `kind`
COST_SCHEMA_VERSION = 1

# -- keys

WARM_UP = "warm-up"  # the `kind` of a record that is no cell's
NAMES = ("id", "experiment")  # keys of a CellRecord that only name it
ADDED = ("num_batches", "notes", "norm_statistics")  # and those that the run itself adds
TIMES = ("seconds", "images_per_second", "peak_memory_mb")  # of a result: no two runs have the same


def deciding_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the numbers of a cell or a warm-up, of its record."""
    found = {key: value for key, value in record.items() if key not in (*NAMES, *ADDED)}
    found["method"] = {k: v for k, v in record["method"].items() if k != "preset"}
    return found


def identity(record: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a cell's record that decides its numbers."""
    text = json.dumps(deciding_values(record), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def warmup_facts(record: Mapping[str, Any]) -> str:
    """What decides a warm-up, as the text that stands in the file of what was learnt."""
    kept = {key: value for key, value in deciding_values(record).items() if key != "schema_version"}
    return json.dumps(kept, sort_keys=True)


def differing_key(stored: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    """The first key of `record` that a stored record has otherwise; None: it's the same cell."""
    return next(
        (key for key in record if key != "experiment" and stored.get(key) != record[key]), None
    )


def cell_id(record: Mapping[str, Any]) -> str:
    """Method, preset, benchmark, setting, model and seed in words, then the hash of all."""
    method, benchmark = record["method"], record["benchmark"]
    words = [method["name"]]
    if method["preset"] != "default":
        words.append(method["preset"])
    words.append(benchmark["name"])
    if benchmark.get("setting", "continual") != "continual":
        words.append(benchmark["setting"])
    words += [record["model"]["name"], f"seed{record['seed']}"]
    if not record.get("adapt", True):
        words.append("noadapt")
    return f"{slug_of(*words)}-{identity(record)[:8]}"


def slug_of(*words: str) -> str:
    """Words as the readable part of a folder's name, at most 111 characters."""
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", word)[:32] for word in words)[:111]


# -- records. Classes of optional keys come after those of the keys that are always there.


class _MethodKeys(TypedDict):
    name: str
    hyperparameters: dict[str, Any]


class MethodRecord(_MethodKeys, total=False):
    """The method of a cell; the presets and windows of a stream are not in a warm-up's."""

    preset: str
    window: int  # images a window of single-sample streams, 0: off


class _BenchmarkKeys(TypedDict):
    name: str
    version: int


class BenchmarkRecord(_BenchmarkKeys, total=False):
    """The stream of a cell: these, and whatever settings and facts a benchmark has of its own."""

    task: str
    setting: str
    domains: list[str]
    rounds: int
    batch_size: int
    examples: int | None  # images of each domain
    severity: int
    severities: list[int]


class ModelRecord(TypedDict):
    """The source model: its name and the fingerprint of its weights."""

    name: str
    sha256: str


class _CellKeys(TypedDict):
    schema_version: int
    id: str
    experiment: str
    method: MethodRecord
    benchmark: BenchmarkRecord
    model: ModelRecord
    preprocessing: dict[str, Any]
    precision: str
    seed: int


class CellRecord(_CellKeys, total=False):
    """cell.yaml: everything that decides a cell's numbers, and its names."""

    kind: str  # WARM_UP; cells have none
    warmup: str  # the id of the warm-up that it starts from
    adapt: bool  # False: the model is scored as it is before the stream
    num_batches: int
    notes: list[str]
    norm_statistics: str


class _BatchKeys(TypedDict):
    batch: int  # from 0
    round: int
    domain: str
    n: int  # images
    errors: int  # wrong images, or wrong pixels


class BatchLine(_BatchKeys, total=False):
    """A line of batches.jsonl."""

    pixels: int  # of segmentation: those with a label
    loss: float | None
    ms: float
    skipped: int  # updates
    resets: int


class _RoundKeys(TypedDict):
    round: int
    mean: float | None  # % of the metric, over domains
    domains: list[dict[str, Any]]  # `domain`, `n`, counts, and a value in % by metric


class RoundRecord(_RoundKeys, total=False):
    """What a round of the stream scored."""

    severities: list[dict[str, Any]]  # `severity`, `n`, `mean` of each, where there are several


class _CostKeys(TypedDict):
    trainable_parameters: int
    extra_state_bytes: int
    forward_per_image: float
    backward_per_image: float
    seconds: float
    images_per_second: float
    peak_memory_mb: float


class CostRecord(_CostKeys, total=False):
    """What a cell took."""

    trainable_tensors: dict[str, int]


class ProbeRecord(TypedDict):
    """The accuracy in % on source images after so many batches; no place before the first."""

    batches: int
    round: int | None
    domain: str | None
    accuracy: float


class _ResultKeys(TypedDict):
    schema_version: int
    cell: str
    metric: str
    mean: float | None  # % of the metric, over rounds
    rounds: list[RoundRecord]
    counters: dict[str, int]
    cost: CostRecord
    order_sha256: str


class ResultRecord(_ResultKeys, total=False):
    """result.json of a cell."""

    source_access: str
    source_accuracy: float | None
    source_probes: list[ProbeRecord]
    model_sha256: str
    model_parameters: int
    classes: list[str]
    notes: list[str]
    plugins: list[str]


class WarmupResult(TypedDict):
    """result.json of a warm-up."""

    schema_version: int
    cell: str
    kind: str
    updates: int
    skipped_updates: int
    source_images: int
    loss_by_epoch: list[float]
    trained_parameters: int
    seconds: float
    source_accuracy: dict[str, float | None]  # in %, `before` and `after`
    model_sha256: str
    learnt_sha256: str


class ProcessRecord(TypedDict):
    """What tells a process from all others, now and later."""

    host: str
    pid: int
    born: str | None  # when it began, in the kernel's ticks
    processes: str  # names what pids count in
    job: str | None


class OwnerRecord(ProcessRecord):
    """cell.lock.json. Times are seconds since 1970 by the owner's clock: for people to read."""

    token: str
    started: float
    heartbeat: float


class FailureRecord(TypedDict):
    """failed.json."""

    reason: str
    type: str
    time: str


class _AttemptKeys(TypedDict):
    outcome: str  # failed, interrupted or lost
    ended: str
    host: str | None
    pid: int | None
    job: str | None


class AttemptRecord(_AttemptKeys, total=False):
    """An attempt that did not end well."""

    began: str
    signal: str
    reason: str
    batches: int  # that stood in batches.jsonl then
