"""Configurations of test-time-adaptation: every key that its public files use, and ours for it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.experiment_file import load_experiment
from ctta_bench.config.imported import HYPERPARAMETERS, METHOD_NAMES, import_config
from ctta_bench.config.presets import presets_of
from ctta_bench.errors import ConfigError
from ctta_bench.stream.orders import HENDRYCKS

CIFAR = {
    "MODEL": {"ADAPTATION": "tent", "ARCH": "Standard"},
    "TEST": {"BATCH_SIZE": 200},
    "CORRUPTION": {"DATASET": "cifar10_c", "SEVERITY": [5], "TYPE": list(HENDRYCKS)},
    "OPTIM": {"METHOD": "Adam", "STEPS": 1, "BETA": 0.9, "LR": "1e-3", "WD": 0.0},
}
IMAGENET = {
    "CORRUPTION": {"DATASET": "imagenet_r", "SEVERITY": [""], "TYPE": [""]},
    "MODEL": {"ADAPTATION": "tent", "ARCH": "resnet50"},
    "OPTIM": {"METHOD": "SGD", "STEPS": 1, "BETA": 0.9, "LR": 0.00025, "WD": 0.0},
    "TEST": {"BATCH_SIZE": 64},
}


def file_of(tmp_path: Path, base: dict[str, Any], **changes: Any) -> Path:
    """The configuration with `SECTION__KEY=value` changed, as a file."""
    values = {section: dict(keys) for section, keys in base.items()}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            values.setdefault(section, {})[key] = value
        else:
            values[section] = value
    file = tmp_path / "theirs.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def imported(tmp_path: Path, base: dict[str, Any], **changes: Any) -> tuple[Any, Any, list[str]]:
    """The method's entry, the experiment and the notes."""
    experiment, notes = import_config(file_of(tmp_path, base, **changes))
    (method,) = experiment.methods
    return method, experiment, notes


def test_a_public_configuration_becomes_an_experiment(tmp_path: Path) -> None:
    method, experiment, notes = imported(tmp_path, CIFAR)
    assert notes == []
    assert experiment.benchmarks == ("cifar10_c",) and experiment.models == ("cifar10_wrn28_10",)
    assert experiment.seeds == (1,) and experiment.preprocessing == ("true",)
    assert experiment.set == {
        "benchmark.setting": "continual",
        "benchmark.batch_size": 200,
        "benchmark.order": "alike",
        "benchmark.severity": 5,
    }
    assert method.name == "tent"
    assert method.set == {
        "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "betas": [0.9, 0.999], "steps": 1,
        "episodic": False,
    }  # fmt: skip


# The keys of their public files beyond the common ones, and what each becomes.
PUBLIC: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("cotta", {"M_TEACHER__MOMENTUM": 0.999, "COTTA__RST": 0.01, "COTTA__AP": 0.92}, "cotta",
     {"teacher_momentum": 0.999, "restore_probability": 0.01, "confidence_threshold": 0.92,
      "views": 32, "loss": "cross_entropy"}),
    ("eata", {"EATA__FISHER_ALPHA": 1.0, "EATA__D_MARGIN": 0.4, "SOURCE__NUM_SAMPLES": 2000},
     "eata", {"fisher_weight": 1.0, "max_similarity": 0.4, "source_samples": 2000}),
    ("eata", {"EATA__D_MARGIN": 0.4}, "eta", {"max_similarity": 0.4, "margin": 0.4}),
    ("eta", {"EATA__D_MARGIN": 0.4}, "eta", {"max_similarity": 0.4}),
    ("eata", {"MODEL__RESET_AFTER_NUM_UPDATES": 1000, "EATA__FISHER_ALPHA": 0.0,
              "EATA__D_MARGIN": 0.05}, "rdumb", {"reset_every": 1000, "loss": "eta"}),
    ("sar", {}, "sar", {"optimizer": "sgd", "nesterov": False, "recovery_threshold": 0.2}),
    ("deyo", {}, "deyo", {"min_drop": 0.2, "max_entropy": 0.5, "destruction": "blocks"}),
    ("deyo", {"DEYO__AUG_TYPE": "occ"}, "deyo", {"destruction": "middle", "occlusion_size": 112}),
    ("rotta", {}, "rotta", {"update_every": 64, "teacher_rate": 0.001}),
    ("rmt", {}, "rmt", {"warmup_iterations": 250, "warmup_batch_size": 200, "warmup_lr": 1e-3}),
    ("santa", {}, "santa", {"anchor_weight": 1.0, "projection": 128}),
    ("roid", {}, "roid", {"prior": "logits", "prediction_rate": 0.1, "source_momentum": 0.99}),
    ("roid", {"ROID__USE_PRIOR_CORRECTION": False}, "roid", {"prior": "off"}),
    ("cmf", {}, "cmf", {"filter_momentum": 0.99, "process_noise": 0.005}),
    ("lame", {}, "lame", {"affinity": "rbf", "neighbours": 5, "symmetric": False}),
    ("bnalpha", {"BN__ALPHA": 0.1, "TEST__BATCH_SIZE": 1}, "norm",
     {"statistics": "alpha", "alpha": 0.1}),
    ("norm_test", {}, "norm", {"statistics": "batch"}),
    ("bnema", {}, "norm", {"statistics": "ema"}),
    ("source", {}, "source", {}),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "changes", "ours", "expected"), PUBLIC)
def test_every_method_of_the_public_files_keeps_its_values(
    theirs: str, changes: dict[str, Any], ours: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    method, _, notes = imported(tmp_path, CIFAR, MODEL__ADAPTATION=theirs, **changes)
    assert method.name == ours
    assert {key: method.set.get(key) for key in expected} == expected
    assert [note for note in notes if not note.startswith("OPTIM.METHOD: adam is not used")] == []


def test_every_hyper_parameter_of_our_presets_is_given(tmp_path: Path) -> None:
    # Else a value of our default preset would stand where theirs has its own.
    for theirs in sorted(set(METHOD_NAMES) - {"eata", "rdumb"}):
        for base in (CIFAR, IMAGENET):
            method, experiment, _ = imported(tmp_path, base, MODEL__ADAPTATION=theirs)
            presets = presets_of(method.name)["default"]
            own = {**presets.get("any", {}), **presets.get(experiment.benchmarks[0], {})}
            unused = {"momentum", "nesterov"} if method.set.get("optimizer") == "adam" else set()
            assert set(own) - {"tuned", "faithful"} - unused <= set(method.set), theirs
    assert set(HYPERPARAMETERS) == {*METHOD_NAMES.values(), "rdumb"}


def test_stream_settings_have_their_counterparts(tmp_path: Path) -> None:
    def stream(**changes: Any) -> dict[str, Any]:
        _, experiment, _ = imported(tmp_path, CIFAR, **changes)
        return {key.removeprefix("benchmark."): value for key, value in experiment.set.items()}

    assert stream(SETTING="reset_each_shift")["setting"] == "reset"
    mixed = stream(SETTING="mixed_domains_correlated", TEST__DELTA_DIRICHLET=0.1)
    assert (mixed["setting"], mixed["delta"]) == ("mixed_correlated", 0.1)
    gradual = stream(SETTING="gradual")
    assert (gradual["setting"], gradual["severity"]) == ("gradual", 5)
    several = stream(CORRUPTION__SEVERITY=[5, 3, 1])
    assert (several["setting"], several["severities"]) == ("gradual", [5, 3, 1])
    assert stream(CORRUPTION__TYPE=["fog", "snow"])["domains"] == ["fog", "snow"]
    assert stream(CORRUPTION__NUM_EX=500)["examples"] == 500
    _, experiment, _ = imported(tmp_path, CIFAR, TEST__BATCH_SIZE=1, TEST__WINDOW_LENGTH=16)
    assert experiment.set["window"] == 16


def test_data_sets_and_networks_have_their_counterparts(tmp_path: Path) -> None:
    _, experiment, notes = imported(tmp_path, IMAGENET)
    assert experiment.benchmarks == ("imagenet_r",)
    assert experiment.models == ("timm:resnet50.tv_in1k",) and notes == []
    assert "benchmark.severity" not in experiment.set
    _, experiment, _ = imported(tmp_path, IMAGENET, CORRUPTION__DATASET="imagenet_k")
    assert experiment.benchmarks == ("imagenet_sketch",)
    name = "baseline_20_transition+speed_1000_seed_44"
    _, experiment, _ = imported(
        tmp_path, IMAGENET, CORRUPTION={"DATASET": "ccc", "SEVERITY": [5], "TYPE": [name]}
    )
    assert experiment.set["benchmark.level"] == 20 and experiment.set["benchmark.domains"] == [name]
    _, experiment, notes = imported(
        tmp_path,
        IMAGENET,
        CORRUPTION={"DATASET": "domainnet126", "SEVERITY": [5], "TYPE": ["clipart"]},
        MODEL__CKPT_PATH="./ckpt/domainnet126/best_painting_2020.pth",
    )
    assert experiment.set["benchmark.source"] == "painting"
    assert experiment.models == ("domainnet126_resnet50",)
    assert "best_painting_2020.pth to ROOT/models/domainnet126_resnet50.pth" in notes[0]
    _, experiment, notes = imported(tmp_path, IMAGENET, MODEL__ARCH="swin_b")
    assert experiment.models == (None,) and notes[0].startswith("MODEL.ARCH: swin_b")


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"MODEL__EPISODIC": True}, "MODEL.EPISODIC: True has no counterpart for roid"),
        ({"OPTIM__STEPS": 3}, "OPTIM.STEPS: 3 has no counterpart for roid"),
        ({"OPTIM__DAMPENING": 0.5}, "OPTIM.DAMPENING: 0.5 has no counterpart for roid"),
        ({"CLIP__PRECISION": "fp32"}, "CLIP.PRECISION: fp32 has no counterpart"),
        ({"CORRUPTION__NUM_EX": 10}, "they take a random subset"),
        ({"MIXED_PRECISION": True}, "MIXED_PRECISION: cells run in float32"),
    ],
)
def test_what_has_no_counterpart_is_named(
    changes: dict[str, Any], note: str, tmp_path: Path
) -> None:
    _, _, notes = imported(tmp_path, CIFAR, MODEL__ADAPTATION="roid", **changes)
    assert len(notes) == 1 and note in notes[0]


def test_keys_without_effect_on_numbers_are_passed_over(tmp_path: Path) -> None:
    changes = {"DATA_DIR": "./data", "SAVE_DIR": "x", "PRINT_EVERY": 5, "TEST__NUM_WORKERS": 2}
    assert imported(tmp_path, CIFAR, **changes)[2] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MODEL__ADAPTATION": "adacontrast"}, "does not have the method 'adacontrast'"),
        ({"MODEL__ADAPTATION": "memo"}, "does not have the method 'memo'"),
        ({"MODEL__ADAPTATION": "tpt", "MODEL__USE_CLIP": True}, "does not have the method 'tpt'"),
        ({"MODEL__USE_CLIP": True}, "does not have CLIP models"),
        ({"CORRUPTION__DATASET": "eurosat"}, "does not have the data set 'eurosat'"),
        ({"SETTING": "gradually"}, "unknown setting 'gradually'; did you mean 'gradual'"),
        ({"OPTIM__LR": "fast"}, "OPTIM.LR: 'fast' is not a number"),
        ({"TEST__BATCH_SIZE": "many"}, "TEST.BATCH_SIZE: 'many' is not of the type of 128"),
        ({"OPTIM__METHOD": "LBFGS"}, "unknown optimiser 'lbfgs'"),
        ({"MODEL__ADAPTATION": "deyo", "DEYO__AUG_TYPE": "fog"}, "DEYO.AUG_TYPE: unknown value"),
    ],
)
def test_what_cannot_be_imported_is_refused_in_a_sentence(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"theirs\.yaml: ") as raised:
        imported(tmp_path, CIFAR, **changes)
    assert words in str(raised.value)


def test_the_command_writes_a_file_that_loads_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = file_of(tmp_path, CIFAR, MODEL__EPISODIC=True, MODEL__ADAPTATION="roid")
    done = CliRunner().invoke(app, ["import-config", str(file)])
    assert done.exit_code == 0, done.output
    assert "note: MODEL.EPISODIC: True has no counterpart" in done.stderr
    text = Path("theirs_cifar10_c.yaml").read_text()
    assert text.startswith("# From theirs.yaml of test-time-adaptation.\n# MODEL.EPISODIC: True")
    assert load_experiment("theirs_cifar10_c.yaml") == import_config(file)[0]
    again = CliRunner().invoke(app, ["import-config", str(file)])
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    (tmp_path / "other.yaml").write_text("name: mine\nmethods: [tent]\n")
    other = CliRunner().invoke(app, ["import-config", "other.yaml"])
    assert other.exit_code == 2 and "is not a configuration of test-time-adaptation" in other.stderr
