"""Files of a run folder: names, schema version, types, and the keys that decide its results.

A run folder contains one cell, or a warm-up that cells start from. Names of files and keys of
records are declared only here. This module imports only the standard library.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypedDict

SCHEMA_VERSION = 1

# -- files of a run folder

CELL_FILE = "cell.yaml"  # the resolved configuration: a CellRecord
BATCHES_FILE = "batches.jsonl"  # one BatchLine per batch; in a warm-up one line per update
PREDICTIONS_FILE = "predictions.npz"  # per image, in stream order
PICTURES_FILE = "pictures.npz"  # segmentation: a few images with labels and predictions
RESULT_FILE = "result.json"  # a ResultRecord, written last; if it exists, the cell is done
ENVIRONMENT_FILE = "env.json"  # versions, code, data, device, time
STATE_FILE = "state.pt"  # newest checkpoint
PREVIOUS_STATE_FILE = "state.previous.pt"  # checkpoint before it; both are deleted when done
MODELS_FOLDER = "models"  # adapted networks, if requested (run/export.py)
LEARNT_FILE = "warmup.safetensors"  # warm-up: the learnt tensors
FAILURE_FILE = "failed.json"  # a FailureRecord: why the last attempt failed
ATTEMPTS_FILE = "attempts.json"  # failed, interrupted and lost attempts, each an AttemptRecord
LOG_FILE = "log.txt"  # messages
LOCK_FILE = ".lock"  # locked by the process that writes
OWNER_FILE = "cell.lock.json"  # that process, an OwnerRecord, renewed while it lives

EXPERIMENT_FILE = "experiment.json"  # next to the cells of a grid: name, title, file as typed

STATE_FILES = (STATE_FILE, PREVIOUS_STATE_FILE)
OWNER_FILES = (LOCK_FILE, OWNER_FILE)  # describe the process that writes, not results
# A folder with one of these but no CELL_FILE is a damaged run folder.
SIGNS_OF_A_RUN = (BATCHES_FILE, PREDICTIONS_FILE, RESULT_FILE, ENVIRONMENT_FILE, STATE_FILE)

# -- files of a report (`ctta-bench report`)

PAGE_FILE = "index.html"
RESULTS_TABLE_FILE = "results.csv"

# -- files that `ctta-bench cost` writes

COST = "cost"  # value of their key `kind`
COST_SCHEMA_VERSION = 1

# -- files of a bundle (`ctta-bench bundle`)

VERIFIED = ".verified.json"  # ending of the file that `ctta-bench verify --save` writes next to it
DEPTHS = ("recount", "replay", "full")  # of a verification

# -- keys

WARM_UP = "warm-up"  # the `kind` in the record of a warm-up
NAMES = ("id", "experiment")  # keys of a CellRecord that only name it
NOT_IN_PAPER = "not in the paper, a choice of this suite"  # start of a note of a cell
SCORED, HELD_OUT = "the scored ones", "others than the scored ones"  # images of a search
ADDED = ("num_batches", "notes", "norm_statistics", "tuned")  # keys that the run itself adds
# Keys of env.json: what is behind a result, recorded and compared, but not in its identity.
PLUGIN_FILES = "plugin_files"  # the SHA-256 of each file of the loaded plug-ins
DATA = "data"  # fingerprints of the streamed images, and of source images if the method reads any
EARLIER = "earlier"  # of a resumed cell: commit, device, ... of the batches before, if others
TIMES = ("seconds", "images_per_second", "peak_memory_mb")  # of a result; they differ per run


def deciding_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record that decide the results of the cell or warm-up."""
    found = {key: value for key, value in record.items() if key not in (*NAMES, *ADDED)}
    found["method"] = {k: v for k, v in record["method"].items() if k != "preset"}
    return found


def identity(record: Mapping[str, Any]) -> str:
    """SHA-256 of the values of a record that decide the results."""
    text = json.dumps(deciding_values(record), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def warmup_facts(record: Mapping[str, Any]) -> str:
    """The values that decide a warm-up, as the text stored in LEARNT_FILE."""
    kept = {key: value for key, value in deciding_values(record).items() if key != "schema_version"}
    return json.dumps(kept, sort_keys=True)


def differing_key(stored: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    """The first key of `record` with another value in a stored record; None for the same cell."""
    return next(
        (key for key in record if key != "experiment" and stored.get(key) != record[key]), None
    )


def cell_id(record: Mapping[str, Any]) -> str:
    """Method, preset, benchmark, setting, model and seed as text, then 8 digits of the identity."""
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
    """The readable start of a folder's name, made of words; at most 111 characters."""
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", word)[:32] for word in words)[:111]


# -- records. A class of required keys comes first; the class with the optional keys inherits it.


class _MethodKeys(TypedDict):
    name: str
    hyperparameters: dict[str, Any]


class MethodRecord(_MethodKeys, total=False):
    """The method of a cell or a warm-up; the record of a warm-up has only the required keys."""

    preset: str
    window: int  # images per window of streams with batches of one image, 0: off


class _BenchmarkKeys(TypedDict):
    name: str
    version: int


class BenchmarkRecord(_BenchmarkKeys, total=False):
    """The stream of a cell: these keys, and further settings and facts of the benchmark."""

    task: str
    setting: str
    domains: list[str]
    rounds: int
    batch_size: int
    examples: int | None  # images per domain
    severity: int
    severities: list[int]


class ModelRecord(TypedDict):
    """The source model: its name and the SHA-256 of its weights."""

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
    """cell.yaml: everything that decides a cell's results, and its names."""

    kind: str  # WARM_UP in the record of a warm-up; cells have no such key
    warmup: str  # the id of the warm-up that the cell starts from
    adapt: bool  # False: the model is scored without adaptation
    num_batches: int
    notes: list[str]
    norm_statistics: str
    # How the hyper-parameters were tuned: `command`, and of a search `domains`, `images` (SCORED
    # or HELD_OUT) and number of `trials`. Missing: not tuned.
    tuned: dict[str, Any]


class _BatchKeys(TypedDict):
    batch: int  # from 0
    round: int
    domain: str
    n: int  # images
    errors: int  # wrong images, or wrong pixels


class BatchLine(_BatchKeys, total=False):
    """A line of batches.jsonl."""

    pixels: int  # segmentation: pixels with a label
    loss: float | None
    ms: float
    skipped: int  # skipped updates
    resets: int


class _RoundKeys(TypedDict):
    round: int
    mean: float | None  # % of the metric, over domains
    domains: list[dict[str, Any]]  # `domain`, `n`, counts, and a value in % by metric


class RoundRecord(_RoundKeys, total=False):
    """The scores of one round of the stream."""

    severities: list[dict[str, Any]]  # `severity`, `n`, `mean` of each, if there are several


class _CostKeys(TypedDict):
    trainable_parameters: int
    extra_state_bytes: int
    forward_per_image: float
    backward_per_image: float
    seconds: float
    images_per_second: float
    peak_memory_mb: float


class CostRecord(_CostKeys, total=False):
    """The cost of a cell."""

    trainable_tensors: dict[str, int]


class _ProbeKeys(TypedDict):
    batches: int
    round: int | None
    domain: str | None
    accuracy: float | None  # on training images


class ProbeRecord(_ProbeKeys, total=False):
    """Accuracy in % on source images after `batches` batches; round and domain None before them."""

    held_out_accuracy: float | None  # on images that the model was not trained on; absent to 0.2


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
    source_accuracy: float | None  # in %, on training images
    held_out_accuracy: float | None  # the same on images that the model was not trained on
    predictions_sha256: str  # of the arrays in predictions.npz
    same_images: bool  # whether an index is the same photograph in every domain
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


class ImportedWarmup(WarmupResult):
    """result.json of a warm-up that `ctta-bench warmup import` read from a published file."""

    imported: dict[str, str]  # name and SHA-256 of the file


class ProcessRecord(TypedDict):
    """What identifies a process, also after its end."""

    host: str
    pid: int
    born: str | None  # start time in ticks of the kernel
    processes: str  # the pid namespace
    job: str | None


class OwnerRecord(ProcessRecord):
    """cell.lock.json. Times are seconds since 1970 by the owner's clock, for people to read."""

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
    """An attempt that failed, was interrupted, or whose process was lost."""

    began: str
    signal: str
    reason: str
    batches: int  # lines of batches.jsonl at its end
