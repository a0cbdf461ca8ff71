"""Names that load at first use, and the deprecated names of the last release.

Importing a package must not load torch for a name that nobody uses. A plug-in written for the last
release must still work: what was renamed keeps its old name for one release, with one
FutureWarning that gives the new name. All old names are in the four tables below:

RENAMED_MODULES     modules (`import ctta_bench.engine`)
RENAMED_NAMES       functions, classes and constants of a module; the module has
                    `if not TYPE_CHECKING: __getattr__ = renamed(__name__)`
RENAMED_ATTRIBUTES  methods, hooks and attributes of a class; the class derives from `OldNames`
RENAMED_VALUES      values of an argument, which the callee passes through `renamed_value`
"""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RENAMED_IN, REMOVED_IN = "0.2.0", "0.3.0"
# Modules of 0.1.0, below `ctta_bench`, and where they are now.
RENAMED_MODULES: Mapping[str, str] = {
    "analysis.attention": "analysis.kept_models.attention",
    "analysis.attention_report": "analysis.figures.attention",
    "analysis.by_setting": "analysis.tables.by_setting",
    "analysis.calibration": "analysis.tables.calibration",
    "analysis.canvas": "analysis.figure.canvas",
    "analysis.cells": "analysis.read.cells",
    "analysis.classes": "analysis.tables.classes",
    "analysis.collect": "analysis.read.collect",
    "analysis.components": "analysis.paper.components",
    "analysis.confusion": "scoring.confusion",
    "analysis.costs": "analysis.tables.cost",
    "analysis.counting": "scoring.metric",
    "analysis.curves": "analysis.figure.curves",
    "analysis.folders": "record",
    "analysis.forgetting": "analysis.tables.forgetting",
    "analysis.geometry": "analysis.kept_models.geometry",
    "analysis.geometry_report": "analysis.figures.geometry",
    "analysis.geometry_runs": "analysis.kept_models.geometry_runs",
    "analysis.geometry_table": "analysis.tables.geometry",
    "analysis.holes": "analysis.table.missing",
    "analysis.kept": "analysis.kept_models.stored",
    "analysis.looks": "analysis.report.kept_models",
    "analysis.measure": "analysis.read.measure",
    "analysis.measured": "analysis.tables.measured_cost",
    "analysis.notes": "analysis.table.notes",
    "analysis.order_sensitivity": "analysis.tables.order_sensitivity",
    "analysis.page": "analysis.report.page",
    "analysis.pairs": "analysis.tables.pairs",
    "analysis.palette": "analysis.figure.palette",
    "analysis.pictures": "analysis.figures.pictures",
    "analysis.plots": "analysis.figures",
    "analysis.predictions": "analysis.read.predictions",
    "analysis.protocol": "analysis.tables.protocol",
    "analysis.quoted": "analysis.paper.quoted",
    "analysis.radar": "analysis.paper.settings",
    "analysis.ranks": "analysis.tables.ranks",
    "analysis.recount": "analysis.read.recount",
    "analysis.round_curves": "analysis.figures.rounds",
    "analysis.rows": "analysis.table.rows",
    "analysis.severities": "analysis.tables.severities",
    "analysis.stability": "analysis.tables.stability",
    "analysis.statistics": "analysis.read.statistics",
    "analysis.status": "record.status",
    "analysis.sweeps": "analysis.figures.sweeps",
    "analysis.tradeoff": "analysis.figures.tradeoff",
    "analysis.verdicts": "analysis.paper.verdicts",
    "board": "launch.status",
    "building": "run.open",
    "checkpoint": "run.checkpoint",
    "cli.bars": "cli.terminal.progress",
    "cli.console": "cli.terminal.console",
    "cli.looking": "cli.reporting",
    "cli.progress": "cli.terminal.progress",
    "cli.reading": "cli.data_reading",
    "cli.shared": "cli.command",
    "cli.standing": "cli.status",
    "cli.training": "cli.models",
    "console": "cli.terminal.console",
    "costing": "measuring.estimate",
    "datasets.cache": "datasets.making.cache",
    "datasets.clean": "datasets.making.clean",
    "datasets.corruptions": "datasets.making.corruptions",
    "datasets.decoded": "datasets.io.decoded",
    "datasets.decoding": "datasets.io.decoding",
    "datasets.fetch": "datasets.fetching.fetch",
    "datasets.file_benchmark": "datasets.io.file_benchmark",
    "datasets.file_images": "datasets.io.file_images",
    "datasets.files": "datasets.io.files",
    "datasets.flat_val": "datasets.io.flat_val",
    "datasets.idx": "datasets.io.idx",
    "datasets.image_lists": "datasets.io.image_lists",
    "datasets.imagenet": "datasets.io.imagenet",
    "datasets.known": "datasets.fetching.known",
    "datasets.label_files": "datasets.io.label_files",
    "datasets.manifest": "datasets.making.manifest",
    "datasets.obtain": "datasets.fetching.obtain",
    "datasets.pickled_batches": "datasets.rehearsal.pickled_batches",
    "datasets.python_batches": "datasets.io.python_batches",
    "datasets.rehearsal_model": "datasets.rehearsal.model",
    "datasets.rehearsal_photos": "datasets.rehearsal.photos",
    "datasets.rehearsal_streets": "datasets.rehearsal.streets",
    "datasets.roots": "datasets.io.roots",
    "datasets.self_made": "datasets.making.self_made",
    "datasets.shards": "datasets.making.shards",
    "datasets.sources": "datasets.fetching.origins",
    "datasets.street_classes": "datasets.io.street_classes",
    "datasets.street_files": "datasets.io.street_files",
    "datasets.streets_scene": "datasets.streets.scene",
    "datasets.streets_scene_buildings": "datasets.streets.buildings",
    "datasets.streets_scene_canvas": "datasets.streets.canvas",
    "datasets.streets_scene_ground": "datasets.streets.ground",
    "datasets.streets_scene_objects": "datasets.streets.objects",
    "datasets.streets_scene_plants": "datasets.streets.plants",
    "datasets.streets_scene_traffic": "datasets.streets.traffic",
    "datasets.streets_scene_vehicles": "datasets.streets.vehicles",
    "datasets.streets_weather": "datasets.streets.weather",
    "datasets.unpack": "datasets.fetching.unpack",
    "datasets.verify": "datasets.fetching.verify",
    "datasets.workers": "datasets.making.workers",
    "engine": "run.engine",
    "environment": "run.environment",
    "experiment": "config.experiment",
    "export": "run.export",
    "garbage": "run.allocator",
    "hyperparameters": "method.hyperparameters",
    "image_sets": "stream.image_sets",
    "label_orders": "stream.label_orders",
    "launch.checks": "launch.begin",
    "launch.packing": "launch.steps",
    "launch.resources": "launch.local",
    "loading": "stream.loading",
    "locks": "record.owner",
    "loggers": "run.loggers",
    "map_metrics": "scoring.segmentation",
    "metrics": "scoring.classification",
    "orders": "stream.orders",
    "pairing": "api.compatibility",
    "parity": "authoring.parity",
    "parts.alignment": "parts.families.alignment",
    "parts.augment": "parts.views.batch",
    "parts.class_prompts": "parts.prompts.class_token",
    "parts.contrast": "parts.families.contrast",
    "parts.cores": "methods.dpcore",
    "parts.destruction": "methods.deyo",
    "parts.dropping": "parts.segmentation.dropping",
    "parts.image_views": "parts.views.image",
    "parts.injected": "parts.adapters.injected",
    "parts.injection": "parts.adapters.injection",
    "parts.masked_maps": "parts.segmentation.masked",
    "parts.moments": "parts.source.moments",
    "parts.norms": "methods.rotta",
    "parts.placed_prompts": "parts.prompts.placed",
    "parts.prefix_prompts": "methods.dept_maps",
    "parts.product": "parts.adapters.product",
    "parts.replay": "parts.source.replay",
    "parts.scales": "parts.segmentation.scales",
    "parts.shifting": "parts.families.shifting",
    "parts.teaching": "parts.families.teaching",
    "parts.thin": "parts.adapters.thin",
    "parts.updates": "method.updates",
    "parts.weighted": "parts.families.weighted",
    "preparation": "run.warmups",
    "presets": "config.presets",
    "probing": "run.probe",
    "scaffold": "authoring.skeleton",
    "settings": "stream.settings",
    "source_cache": "run.source_cache",
    "source_models.preprocessing": "model.preprocessing",
    "state": "method.state",
    "survey": "stream.availability",
    "validation": "config.validation",
    "viewing": "measuring.attention_maps",
    "warmup": "method.warmup",
    "yaml_files": "config.yaml",
}
_RENAMED_CHECKS = {
    "labels_never_reach_it": "labels_are_not_read",
    "reset_restores_every_bit": "reset_is_bit_identical",
    "resume_is_bit_same": "resume_is_bit_identical",
    "same_seed_same_bits": "same_seed_is_bit_identical",
}
# By module, below `ctta_bench`, as it is called now: old name, new name.
RENAMED_NAMES: Mapping[str, Mapping[str, str]] = {
    "analysis.figures.means": {"bar_figure": "mean_figure"},
    "parts.adapters.injection": {"bypassed": "adapters_disabled", "steady": "cached_weights"},
    "parts.adapters.thin": {"Entered": "ProductInput", "Part": "RowBlock"},
    "parts.encoder": {"Part": "Segment", "encoder_parts": "encoder_segments"},
    "parts.families.weighted": {
        "FOLLOWING": "BATCH_SHARE",
        "WeightedHyperparameters": "SampleWeightingHyperparameters",
        "WeightedMethod": "SampleWeightingMethod",
    },
    "parts.segmentation.scales": {
        "seen_over": "view_probabilities",
        "where_sure": "select_log_probabilities",
    },
    "parts.selection": {"FOLLOWING": "BATCH_SHARE"},
    "parts.source.moments": {"kept_statistics": "cached_statistics"},
    "parts.views.batch": {"in_parts": "in_chunks"},
    "testing": {"serving_benches": "supported_benches", **_RENAMED_CHECKS},
}
# By class, below `ctta_bench`, as it is called now: old name, new name.
RENAMED_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "methods.cmae.ContinualMAE": {"look": "target_and_mask", "restore": "stochastic_restore"},
    "methods.cotta.CoTTA": {"objective": "total_loss", "restore": "stochastic_restore"},
    "methods.dept.DePT": {
        "follow": "ema_update_teacher",
        "learn": "update",
        "objective": "total_loss",
        "passed": "forward_pass",
    },
    "methods.dpcore.DPCore": {"passed": "features_and_logits"},
    "methods.eata.ETA": {"objective": "total_loss"},
    "methods.norm.Norm": {"follow": "update_statistics"},
    "methods.pseudo_label.PseudoLabel": {"objective": "total_loss"},
    "methods.rmt.RMT": {"learn": "update"},
    "methods.rotta.RoTTA": {"objective": "total_loss", "weights": "sample_weights"},
    "methods.sar.SAR": {"restore_weights": "undo_perturbation"},
    "methods.svdp.SVDP": {"follow": "ema_update_and_restore", "label": "teacher_log_probabilities"},
    "methods.tent.Tent": {"objective": "total_loss"},
    "methods.vdp.VDP": {"learn": "update"},
    "methods.vida.ViDA": {
        "allot": "scale_by_uncertainty",
        "follow": "ema_update_teacher",
        "learn": "update",
        "objective": "total_loss",
        "restore": "stochastic_restore",
    },
    "methods.vida_maps.ViDAMaps": {"labels": "teacher_log_probabilities"},
    "model.source_model.SourceModel": {"fed_as_trained": "with_trained_preprocessing"},
    "parts.adapters.injected.InjectedLinear": {
        "bypassed": "adapters_disabled",
        "hold_still": "cache_weight",
        "parts": "row_blocks",
        "steady": "caches_weight",
    },
    "parts.adapters.injected.InjectedWeight": {"bypassed": "adapters_disabled"},
    "parts.adapters.weights.WeightAdapter": {"hold": "register_frozen_weight"},
    "parts.families.alignment.AlignmentMethod": {
        "running": "running_moments",
        "source": "source_statistics",
    },
    "parts.families.shifting.ShiftMethod": {
        "follow": "update_statistics",
        "seen": "forward_features",
        "shifted": "shifted_logits",
    },
    "parts.families.weighted.SampleWeightingMethod": {
        "learn": "update",
        "objective": "total_loss",
        "weights": "sample_weights",
    },
    "parts.importance.PathImportance": {"follow": "accumulate"},
    "parts.segmentation.masked.MaskedMaps": {"look": "logits_and_uncertainty"},
    "parts.selection.Selection": {"follow": "update_average"},
    "parts.source.moments.RunningMoments": {"follow": "update_statistics"},
    "stream.benchmark.Benchmark": {
        "make_ready": "prepare_data",
        "other_labels": "different_label_set",
        "source_place": "source_location",
        "strangers": "unknown_folders",
    },
}
# By argument: old value, new value.
RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {
    "Setting argument": {"walk": "severity_schedule"},
    "load_benchmark argument": {"name": "benchmark"},
    "Method.exempt": _RENAMED_CHECKS,
    "Setting.join": {
        "chain": "concatenate",
        "stream": "continuous",
        "pool": "shuffle",
        "deal": "interleave",
        "blend": "cross_fade",
    },
    "Setting.severity_schedule": {"rise": "rising", "fall_first": "falling_first"},
}


def renamed_value(argument: str, value: Any, *, stacklevel: int = 2) -> Any:
    """The value of an argument, or the new one of a renamed value, with a warning.

    Example: `renamed_value("Setting.join", "pool")` is `"shuffle"`.
    """
    new = RENAMED_VALUES[argument].get(value, value)
    if new != value:
        _warn(f"{argument} {value!r}", repr(new), stacklevel + 1)
    return new


def _warn(old: str, new: str, stacklevel: int) -> None:
    warnings.warn(
        f"{old} is called {new} since ctta-bench {RENAMED_IN}; the old name will be removed in "
        f"{REMOVED_IN}.",
        FutureWarning,
        stacklevel=stacklevel + 1,
    )


def renamed(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that gives what RENAMED_NAMES lists under its old name."""
    names = RENAMED_NAMES.get(module.removeprefix("ctta_bench."), {})

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", f"{module}.{names[name]}", stacklevel=2)
        loaded = sys.modules[module]
        setattr(loaded, name, getattr(loaded, names[name]))  # so that there is one warning
        return getattr(loaded, name)

    return find


class OldNames:
    """Base of a class whose attributes were renamed (RENAMED_ATTRIBUTES), and of its subclasses.

    Reading, calling or setting an old attribute uses the new one. A subclass that defines an old
    hook defines the new one by it. One FutureWarning for each class and old name.

    Example: with `{"parts.selection.Selection": {"follow": "update_average"}}` and
    `class Selection(OldNames)`, `Selection(...).follow(p)` calls `update_average(p)`.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Pair the old names with the new ones that the class defines."""
        super().__init_subclass__(**arguments)
        for base in cls.__mro__:
            key = f"{base.__module__}.{base.__qualname__}".removeprefix("ctta_bench.")
            for old, new in RENAMED_ATTRIBUTES.get(key, {}).items():
                if old in vars(cls) and new not in vars(cls):
                    _warn(f"{cls.__name__}.{old}", f"{cls.__name__}.{new}", stacklevel=2)
                    setattr(cls, new, vars(cls)[old])
                elif old not in vars(cls) and (new in vars(cls) or base is cls):
                    setattr(cls, old, _OldName(cls, old, new))


class _OldName:
    """An old attribute of `owner`. It gives that class's own new one, as `super()` expects."""

    def __init__(self, owner: type, old: str, new: str) -> None:
        self.owner, self.old, self.new = owner, old, new
        self.warned = False

    def __get__(self, instance: object, kind: type) -> Any:
        self._warn_once()
        if self.new not in vars(self.owner):  # an attribute of instances
            return self if instance is None else getattr(instance, self.new)
        found = vars(self.owner)[self.new]
        return found.__get__(instance, kind) if hasattr(found, "__get__") else found

    def __set__(self, instance: object, value: object) -> None:
        self._warn_once()
        setattr(instance, self.new, value)

    def _warn_once(self) -> None:
        if not self.warned:
            self.warned = True
            name = self.owner.__name__
            _warn(f"{name}.{self.old}", f"{name}.{self.new}", stacklevel=3)


def late(package: str, *modules: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that finds names in its modules, loaded at the first use.

    Example: `__getattr__ = late(__name__, "base", "hyperparameters")`; the first module that has a
    name provides it. Old names of the package in RENAMED_NAMES are found, too.
    """
    old_name = renamed(package)

    def find(name: str) -> Any:
        if not name.startswith("_") and name not in modules:
            for module in modules:
                loaded = importlib.import_module(f"{package}.{module}")
                if hasattr(loaded, name):
                    return getattr(loaded, name)
        return old_name(name)

    return find


class RenamedModules(MetaPathFinder, Loader):
    """Finds renamed modules by their old names, with one warning for each."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old name, None for any other."""
        package, _, old = fullname.partition(".")
        if package != "ctta_bench" or old not in RENAMED_MODULES:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its new name."""
        new = f"ctta_bench.{RENAMED_MODULES[spec.name.partition('.')[2]]}"
        _warn(spec.name, new, stacklevel=2)
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run; the module keeps the spec of its new name."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def find_renamed_modules() -> None:
    """Let old names be imported; they are looked for last."""
    if not any(isinstance(finder, RenamedModules) for finder in sys.meta_path):
        sys.meta_path.append(RenamedModules())
