"""Configurations of mariodoebler/test-time-adaptation as experiment files.

Their YAML files have keys SECTION.KEY over the defaults of their conf.py. docs/coming-from.md has
the same tables for readers.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctta_bench.config.experiment_file import Experiment
from ctta_bench.config.validation import validate
from ctta_bench.config.yaml import read_yaml
from ctta_bench.errors import ConfigError, did_you_mean
from ctta_bench.registry import BENCHMARKS, METHODS

THEIRS = "test-time-adaptation"
# Defaults of their conf.py that matter where a file does not set the key.
DEFAULTS: dict[str, Any] = {
    "SETTING": "continual", "RNG_SEED": 1, "MODEL.ADAPTATION": "source", "MODEL.ARCH": "Standard",
    "MODEL.WEIGHTS": "IMAGENET1K_V1", "MODEL.CKPT_PATH": "", "MODEL.EPISODIC": False,
    "MODEL.RESET_AFTER_NUM_UPDATES": 0, "CORRUPTION.DATASET": "cifar10_c",
    "CORRUPTION.TYPE": [], "CORRUPTION.SEVERITY": [5, 4, 3, 2, 1], "CORRUPTION.NUM_EX": -1,
    "BN.ALPHA": 0.1, "OPTIM.STEPS": 1, "OPTIM.LR": 1e-3, "OPTIM.METHOD": "Adam", "OPTIM.BETA": 0.9,
    "OPTIM.MOMENTUM": 0.9, "OPTIM.DAMPENING": 0.0, "OPTIM.NESTEROV": True, "OPTIM.WD": 0.0,
    "M_TEACHER.MOMENTUM": 0.999, "CONTRAST.TEMPERATURE": 0.1, "CONTRAST.PROJECTION_DIM": 128,
    "CONTRAST.MODE": "all", "COTTA.RST": 0.01, "COTTA.AP": 0.92, "RMT.LAMBDA_CE_SRC": 1.0,
    "RMT.LAMBDA_CE_TRG": 1.0, "RMT.LAMBDA_CONT": 1.0, "RMT.NUM_SAMPLES_WARM_UP": 50000,
    "SANTA.LAMBDA_CE_TRG": 1.0, "SANTA.LAMBDA_CONT": 1.0, "LAME.AFFINITY": "rbf", "LAME.KNN": 5,
    "LAME.FORCE_SYMMETRY": False, "EATA.FISHER_ALPHA": 2000.0, "EATA.D_MARGIN": 0.05,
    "EATA.MARGIN_E0": 0.4, "SAR.RESET_CONSTANT_EM": 0.2, "DEYO.REWEIGHT_ENT": True,
    "DEYO.REWEIGHT_PLPD": True, "DEYO.PLPD": 0.2, "DEYO.MARGIN": 0.5, "DEYO.AUG_TYPE": "patch",
    "DEYO.OCCLUSION_SIZE": 112, "DEYO.ROW_START": 56, "DEYO.COLUMN_START": 56, "DEYO.PATCH_LEN": 4,
    "ROTTA.MEMORY_SIZE": 64, "ROTTA.UPDATE_FREQUENCY": 64, "ROTTA.NU": 0.001, "ROTTA.ALPHA": 0.05,
    "ROTTA.LAMBDA_T": 1.0, "ROTTA.LAMBDA_U": 1.0, "ROID.USE_WEIGHTING": True,
    "ROID.USE_PRIOR_CORRECTION": True, "ROID.USE_CONSISTENCY": True, "ROID.MOMENTUM_SRC": 0.99,
    "ROID.MOMENTUM_PROBS": 0.9, "ROID.TEMPERATURE": 1 / 3, "CMF.ALPHA": 0.99, "CMF.GAMMA": 0.99,
    "CMF.Q": 0.005, "CMF.TYPE": "lp", "SOURCE.NUM_SAMPLES": -1, "SOURCE.PERCENTAGE": 1.0,
    "TEST.BATCH_SIZE": 128, "TEST.WINDOW_LENGTH": 1, "TEST.N_AUGMENTATIONS": 32,
    "TEST.DELTA_DIRICHLET": 0.0, "MIXED_PRECISION": False, "MODEL.USE_CLIP": False,
}  # fmt: skip
RENAMED = {"CKPT_PATH": "MODEL.CKPT_PATH", "TEST.ALPHA_DIRICHLET": "TEST.DELTA_DIRICHLET",
           "EATA.NUM_SAMPLES": "SOURCE.NUM_SAMPLES"}  # fmt: skip
# What changes no number: folders, logs, workers, cuDNN.
WITHOUT_EFFECT = re.compile(
    r"(DATA_DIR|CKPT_DIR|SAVE_DIR|LOG_DEST|LOG_TIME|PRINT_EVERY|DESC|DETERMINISM"
    r"|CUDNN\..*|.*\.NUM_WORKERS|TEST\.DEBUG|LAME\.SIGMA)"
)
BENCHMARK_NAMES = {
    **{n: n for n in ("cifar10_c", "cifar100_c", "imagenet_c", "imagenet_r", "imagenet_a")},
    **{n: n for n in ("imagenet_v2", "imagenet_d109", "domainnet126", "ccc")},
    "imagenet_k": "imagenet_sketch",
}
SETTING_NAMES = {
    "continual": "continual", "reset_each_shift": "reset", "gradual": "gradual",
    "mixed_domains": "mixed", "correlated": "correlated",
    "reset_each_shift_correlated": "reset_correlated", "gradual_correlated": "gradual_correlated",
    "mixed_domains_correlated": "mixed_correlated",
}  # fmt: skip
METHOD_NAMES = {
    "norm_test": "norm", "bntest": "norm", "norm_alpha": "norm", "bnalpha": "norm",
    "norm_ema": "norm", "bnema": "norm",
    **{n: n for n in ("source", "tent", "cotta", "eata", "eta", "sar", "deyo", "rotta", "rmt")},
    **{n: n for n in ("roid", "cmf", "santa", "lame", "rdumb")},
}  # fmt: skip
_WEIGHTED = {
    "ROID.USE_WEIGHTING": "weighting", "ROID.USE_CONSISTENCY": "consistency",
    "ROID.USE_PRIOR_CORRECTION": "prior", "ROID.MOMENTUM_PROBS": "prediction_rate",
    "ROID.TEMPERATURE": "temperature",
}  # fmt: skip
_FILTERS = {"EATA.MARGIN_E0": "margin", "EATA.D_MARGIN": "max_similarity"}
_CONTRAST = {"CONTRAST.TEMPERATURE": "temperature", "CONTRAST.PROJECTION_DIM": "projection"}
# Our hyper-parameters by their keys; the optimiser's are in `_optimizer`.
HYPERPARAMETERS: dict[str, dict[str, str]] = {
    "source": {}, "norm": {},
    "tent": {"OPTIM.STEPS": "steps", "MODEL.EPISODIC": "episodic"},
    "cotta": {
        "M_TEACHER.MOMENTUM": "teacher_momentum", "COTTA.RST": "restore_probability",
        "COTTA.AP": "confidence_threshold", "TEST.N_AUGMENTATIONS": "views",
    },
    "eta": _FILTERS, "rdumb": {**_FILTERS, "MODEL.RESET_AFTER_NUM_UPDATES": "reset_every"},
    "eata": {
        **_FILTERS, "EATA.FISHER_ALPHA": "fisher_weight", "SOURCE.NUM_SAMPLES": "source_samples",
    },
    "sar": {"SAR.RESET_CONSTANT_EM": "recovery_threshold"},
    "deyo": {
        "DEYO.REWEIGHT_ENT": "weigh_by_entropy", "DEYO.REWEIGHT_PLPD": "weigh_by_drop",
        "DEYO.PLPD": "min_drop", "DEYO.MARGIN": "max_entropy", "EATA.MARGIN_E0": "margin",
        "DEYO.AUG_TYPE": "destruction", "DEYO.PATCH_LEN": "blocks_per_side",
    },
    "rotta": {
        "ROTTA.MEMORY_SIZE": "memory_size", "ROTTA.UPDATE_FREQUENCY": "update_every",
        "ROTTA.NU": "teacher_rate", "ROTTA.ALPHA": "statistics_rate",
        "ROTTA.LAMBDA_T": "age_weight", "ROTTA.LAMBDA_U": "uncertainty_weight",
    },
    "rmt": {
        **_CONTRAST, "RMT.LAMBDA_CE_SRC": "source_weight", "RMT.LAMBDA_CE_TRG": "target_weight",
        "RMT.LAMBDA_CONT": "contrast_weight", "M_TEACHER.MOMENTUM": "teacher_momentum",
    },
    "santa": {
        **_CONTRAST, "SANTA.LAMBDA_CE_TRG": "anchor_weight",
        "SANTA.LAMBDA_CONT": "contrast_weight",
    },
    "roid": {**_WEIGHTED, "ROID.MOMENTUM_SRC": "source_momentum"},
    "cmf": {
        **_WEIGHTED, "CMF.ALPHA": "source_momentum", "CMF.GAMMA": "filter_momentum",
        "CMF.Q": "process_noise",
    },
    "lame": {
        "LAME.AFFINITY": "affinity", "LAME.KNN": "neighbours", "LAME.FORCE_SYMMETRY": "symmetric",
    },
}  # fmt: skip
# What their code fixes, and this suite leaves open.
CONSTANTS: dict[str, dict[str, Any]] = {
    "sar": {"rho": 0.05, "margin": 0.4}, "lame": {"weight": 1.0},
}  # fmt: skip
# Values that change their form on the way.
CONVERTED: dict[str, Callable[[Any], Any]] = {
    "ROID.USE_PRIOR_CORRECTION": lambda used: "logits" if used else "off",
    "ROID.MOMENTUM_PROBS": lambda momentum: round(1 - momentum, 12),
    "DEYO.AUG_TYPE": lambda kind: {"patch": "blocks", "pixel": "pixels", "occ": "middle"}[kind],
    "LAME.AFFINITY": str.lower,
}
_AUGMIX = {"Hendrycks2020AugMix_WRN": "wrn40_2", "Hendrycks2020AugMix_ResNeXt": "resnext29"}


@dataclass
class _Config:
    """Their configuration; `used` are the keys that have become part of the experiment."""

    values: Mapping[str, Any]
    used: set[str] = field(default_factory=set)

    def __getitem__(self, key: str) -> Any:
        """The value of the file or of their conf.py; a number may be written as text (1e-3)."""
        self.used.add(key)
        value, default = self.values.get(key, DEFAULTS[key]), DEFAULTS[key]
        if isinstance(default, float) and not isinstance(value, bool):
            try:
                return float(value)
            except (TypeError, ValueError):
                raise ConfigError(f"{key}: {value!r} is not a number.") from None
        if isinstance(default, bool | int | list | str) and not isinstance(value, type(default)):
            raise ConfigError(f"{key}: {value!r} is not of the type of {default!r}.")
        return value


def import_config(file: Path) -> tuple[Experiment, list[str]]:
    """The experiment of a configuration file, and a sentence for each key without a counterpart.

    Values that the file leaves out are those of their conf.py. Raises ConfigError for a file that
    is not such a configuration, and for a method or data set that this suite does not have.

    Example: `experiment, left_out = import_config(Path("cfgs/cifar10_c/cotta.yaml"))`
    """
    flat = _flattened(read_yaml(file), file)
    config, notes = _Config(flat), list[str]()
    try:
        method = _method(config)
        benchmark = _benchmark(config)
        settings = _stream(config, benchmark, notes)
        model = _model(config, benchmark, notes)
        chosen = _hyperparameters(config, method, benchmark, notes)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    for key, value in flat.items():
        idle = key not in config.used and not WITHOUT_EFFECT.fullmatch(key)
        if idle and (key not in DEFAULTS or config[key] != DEFAULTS[key]):
            notes.append(f"{key}: {value} has no counterpart for {method} on {benchmark}")
    values = {
        "name": f"{file.stem}_{benchmark}",
        "title": f"{file.name} of {THEIRS}",
        "benchmarks": [benchmark],
        **({"models": [model]} if model else {}),
        "preprocessing": ["true"],
        "seeds": [config["RNG_SEED"]],
        "set": settings,
        "methods": [{"name": method, "set": chosen}],
    }
    validate(METHODS.get(method).Hyperparameters, chosen, f"{file}: {method}")
    plain = {k.removeprefix("benchmark."): v for k, v in settings.items() if k != "window"}
    validate(BENCHMARKS.get(benchmark).Settings, plain, f"{file}: {benchmark}")
    return validate(Experiment, values, str(file)), notes


def _flattened(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """SECTION.KEY: value. Raises ConfigError for keys in which nothing is theirs."""
    flat: dict[str, Any] = {}
    for section, inner in values.items():
        keys = {f"{section}.{k}": v for k, v in inner.items()} if isinstance(inner, dict) else {}
        flat |= keys or {str(section): inner}
    flat = {RENAMED.get(key, key): value for key, value in flat.items()}
    if not flat.keys() & {"MODEL.ADAPTATION", "CORRUPTION.DATASET"}:
        raise ConfigError(
            f"{file}: is not a configuration of {THEIRS}: it has neither MODEL.ADAPTATION nor "
            "CORRUPTION.DATASET."
        )
    return flat


def _named(names: Mapping[str, str], value: str, key: str, what: str) -> str:
    if value.lower() not in names:
        hint = did_you_mean(value.lower(), names) or f"; known are {', '.join(names)}."
        raise ConfigError(f"{key}: this suite does not have the {what} {value!r}{hint}")
    return names[value.lower()]


def _method(config: _Config) -> str:
    """Their EATA is ETA without source images or weight, and RDumb with regular resets."""
    method = _named(METHOD_NAMES, config["MODEL.ADAPTATION"], "MODEL.ADAPTATION", "method")
    if method == "eata" and (config["EATA.FISHER_ALPHA"] <= 0 or config["SOURCE.NUM_SAMPLES"] <= 0):
        method = "eta"
    if method in ("eta", "tent") and config["MODEL.RESET_AFTER_NUM_UPDATES"] > 0:
        method = "rdumb"
    return method


def _benchmark(config: _Config) -> str:
    if config["MODEL.USE_CLIP"]:
        raise ConfigError("MODEL.USE_CLIP: this suite does not have CLIP models.")
    return _named(BENCHMARK_NAMES, config["CORRUPTION.DATASET"], "CORRUPTION.DATASET", "data set")


def _stream(config: _Config, benchmark: str, notes: list[str]) -> dict[str, Any]:
    """The settings of the stream, and the window."""
    theirs = config["SETTING"]
    if theirs not in SETTING_NAMES:
        hint = did_you_mean(theirs, SETTING_NAMES) or f"; known: {', '.join(SETTING_NAMES)}."
        raise ConfigError(f"SETTING: unknown setting {theirs!r}{hint}")
    setting = SETTING_NAMES[theirs]
    severities = [s for s in config["CORRUPTION.SEVERITY"] if s != ""]
    if "severity" not in BENCHMARKS.get(benchmark).Settings.model_fields:
        setting = {"gradual": "continual", "gradual_correlated": "correlated"}.get(setting, setting)
        severities = []
    if len(severities) > 1 and not setting.startswith("gradual"):
        passes = {"continual": "gradual", "correlated": "gradual_correlated"}
        if setting in passes:  # each domain passes all severities, without a reset
            setting = passes[setting]
        else:
            notes.append(f"CORRUPTION.SEVERITY: only {severities[0]} of {severities} is used")
    found: dict[str, Any] = {"setting": setting, "batch_size": config["TEST.BATCH_SIZE"]}
    found["order"] = "alike"  # they shuffle every domain with the same seed
    if len(severities) > 1 and setting.startswith("gradual"):
        found |= {"severity": max(severities), "severities": severities}
    elif severities:  # gradual: from 1 to 5 and back, whatever the one severity of the file
        found["severity"] = 5 if setting.startswith("gradual") else severities[0]
    if "correlated" in setting:
        found["delta"] = config["TEST.DELTA_DIRICHLET"]
    found |= _images(config, benchmark, setting, notes)
    window = config["TEST.WINDOW_LENGTH"]
    alone = config["TEST.BATCH_SIZE"] == 1 and window > 1
    if config["MIXED_PRECISION"]:
        notes.append("MIXED_PRECISION: cells run in float32; choose another with --precision")
    return {f"benchmark.{k}": v for k, v in found.items()} | ({"window": window} if alone else {})


def _images(config: _Config, benchmark: str, setting: str, notes: list[str]) -> dict[str, Any]:
    """Which domains and how many images."""
    found: dict[str, Any] = {}
    domains = [name for name in config["CORRUPTION.TYPE"] if name]
    if benchmark == "domainnet126":
        source = re.search(r"(real|clipart|painting|sketch)", config["MODEL.CKPT_PATH"])
        return {"source": source[1] if source else "real"}
    if benchmark == "ccc" and domains:
        found["level"] = int(domains[0].split("_")[1])
    built = BENCHMARKS.get(benchmark)
    own = built(validate(built.Settings, found, benchmark)).domain_names()
    if domains and tuple(domains) != own:
        found["domains"] = domains
    count = config["CORRUPTION.NUM_EX"]
    if benchmark == "imagenet_c":
        found["images"] = "list" if count == -1 and "correlated" not in setting else "all"
    if count != -1:
        found["examples"] = count
        notes.append("CORRUPTION.NUM_EX: they take a random subset, this suite the first images")
    return found


def _model(config: _Config, benchmark: str, notes: list[str]) -> str | None:
    name, weights = config["MODEL.ARCH"].strip(), config["MODEL.WEIGHTS"]
    if benchmark == "domainnet126" and name == "resnet50":
        if checkpoint := config["MODEL.CKPT_PATH"]:
            notes.append(
                f"MODEL.CKPT_PATH: copy {checkpoint} to ROOT/models/domainnet126_resnet50.pth"
            )
        return "domainnet126_resnet50"
    if benchmark.startswith("cifar"):
        data = benchmark.removesuffix("_c")
        known = {arch: f"{data}_{ours}" for arch, ours in _AUGMIX.items()}
        known |= {"Standard": "cifar10_wrn28_10"} if data == "cifar10" else {}
    else:
        tags = {"IMAGENET1K_V1": "tv_in1k", "IMAGENET1K_V2": "tv2_in1k"}
        tag = tags.get(weights, weights)
        known = {"resnet50": f"timm:resnet50.{tag}", "Standard_R50": "timm:resnet50.tv_in1k"}
    if name not in known:
        notes.append(
            f"MODEL.ARCH: {name} (weights {weights}) is none of {', '.join(known)}; the experiment "
            "has this suite's default model, or add `models: [timm:NAME.TAG]`"
        )
    return known.get(name)


def _hyperparameters(
    config: _Config, method: str, benchmark: str, notes: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = dict(CONSTANTS.get(method, {}))
    if method not in ("source", "norm", "lame"):
        found |= _optimizer(config, method, notes)
    for key, ours in HYPERPARAMETERS[method].items():
        try:
            found[ours] = CONVERTED.get(key, lambda value: value)(config[key])
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{key}: unknown value {config[key]!r}.") from None
    theirs = config["MODEL.ADAPTATION"].lower()
    if method == "norm":
        kinds = {"alpha": "alpha", "ema": "ema", "test": "batch"}
        found["statistics"] = next(kind for end, kind in kinds.items() if theirs.endswith(end))
        found |= {"alpha": config["BN.ALPHA"]} if found["statistics"] == "alpha" else {}
    if method == "cotta":
        found["loss"] = "cross_entropy" if benchmark.startswith("cifar") else "symmetric"
    if method == "rdumb":
        found |= {"loss": "tent" if theirs == "tent" else "eta", "reset_unit": "batches"}
    if method == "deyo" and found["destruction"] == "middle":
        found |= {
            "occlusion_size": config["DEYO.OCCLUSION_SIZE"],
            "occlusion_row": config["DEYO.ROW_START"],
            "occlusion_column": config["DEYO.COLUMN_START"],
        }
    if method == "rmt" and config["RMT.NUM_SAMPLES_WARM_UP"] > 0:
        size = config["TEST.BATCH_SIZE"]
        size = size if size > 1 else config["TEST.WINDOW_LENGTH"]
        found |= {
            "warmup_iterations": config["RMT.NUM_SAMPLES_WARM_UP"] // size,
            "warmup_batch_size": size,
            "warmup_optimizer": "sgd" if found["optimizer"] == "sgd" else "adamw",
            "warmup_lr": found["lr"],
        }
    return found


def _optimizer(config: _Config, method: str, notes: list[str]) -> dict[str, Any]:
    kind = config["OPTIM.METHOD"].lower()
    if kind not in ("sgd", "adam", "adamw"):
        raise ConfigError(f"OPTIM.METHOD: unknown optimiser {kind!r}; known are SGD, Adam, AdamW.")
    if method == "sar":  # theirs is always plain SGD, and its rate that of transformers
        transformer = re.search("vit_|swin_", config["MODEL.ARCH"])
        lr = 1e-3 if transformer else config["OPTIM.LR"]
        if kind != "sgd":
            notes.append(f"OPTIM.METHOD: {kind} is not used; their SAR always takes plain SGD")
        return {"optimizer": "sgd", "lr": lr, "momentum": config["OPTIM.MOMENTUM"],
                "nesterov": False, "weight_decay": 0.0}  # fmt: skip
    found: dict[str, Any] = {
        "optimizer": kind, "lr": config["OPTIM.LR"], "weight_decay": config["OPTIM.WD"],
    }  # fmt: skip
    if kind != "sgd":
        return found | {"betas": [config["OPTIM.BETA"], 0.999]}
    momentum = {"momentum": config["OPTIM.MOMENTUM"], "nesterov": config["OPTIM.NESTEROV"]}
    return found | momentum
