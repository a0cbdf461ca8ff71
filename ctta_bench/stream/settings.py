"""Settings: what a user can choose about a stream, and the table of protocols by name.

A setting defines the severities of a domain, the order of images within a domain, how domains are
joined, and whether the method is reset. docs/protocols.md defines each of them.
"""

import difflib
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from ctta_bench.errors import expanded
from ctta_bench.names import renamed_value

ImageOrder = Literal["file", "shuffled", "alike"]
Part = Literal["tuning", "scoring"]
TUNING_EVERY = 5  # every fifth image is of the part `tuning`
DomainOrder = Literal[
    "random", "rotta", "cotta0", "cotta1", "cotta2", "cotta3", "cotta4", "cotta5", "cotta6",
    "cotta7", "cotta8", "cotta9",
]  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A protocol, in an entry of SETTINGS.

    definition, source: texts of `ctta-bench list settings`. join: how domains follow each other:
    one after another ("concatenate"), the same with batches that span two domains ("continuous"),
    all mixed ("shuffle"), in alternating runs of batches ("interleave"), fading into each other
    ("cross_fade"), or by a Markov chain ("markov"). labels: how labels determine the order: not at
    all (""), in balanced chunks ("chunks"), in slots ("slots"), by a shift of the label
    distribution ("shift"), or by a Markov chain ("markov"; with the same join only).
    severity_schedule: each domain passes rising and then falling severities ("rising"), or the
    first domain only falling ones ("falling_first"). resets: reset the method at each domain.
    parameters: names and default values; None: the default depends on the images. display_name: the
    name in tables and figures; "": the setting's own name. citation: the BibTeX key of its paper, a
    key of `ctta_bench.registry.references()`.

    Example: `SETTINGS["my_cdc"] = Setting("as cdc, with resets", "own", "interleave", resets=True,
    parameters={"delta": 0.5, "slots": 2})`
    """

    definition: str
    source: str
    join: Literal["concatenate", "continuous", "shuffle", "interleave", "cross_fade", "markov"] = (
        "concatenate"
    )
    labels: Literal["", "chunks", "slots", "shift", "markov"] = ""
    severity_schedule: Literal["", "rising", "falling_first"] = ""
    resets: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    display_name: str = ""
    citation: str = ""
    walk: InitVar[str] = ""  # the old name of severity_schedule

    def __post_init__(self, walk: str) -> None:
        """Accept the argument and the values of ctta-bench 0.1."""
        given = {"join": self.join, "severity_schedule": walk or self.severity_schedule}
        for key, value in given.items():
            object.__setattr__(self, key, renamed_value(f"Setting.{key}", value, stacklevel=3))


def _walk(setting: Setting) -> Any:
    """The old name of `severity_schedule`, read from a setting."""
    return getattr(setting, renamed_value("Setting argument", "walk", stacklevel=2))


Setting.walk = property(_walk)  # type: ignore[attr-defined]

_TTA_BENCH = "TTA-bench (mariodoebler/test-time-adaptation)"
_SAR = "SAR (Niu et al., 2023), after Wu et al. (2021)"
_SEVERITIES: Mapping[str, Any] = {"severities": None}
_SORTED: Mapping[str, Any] = {"delta": 0.0}
_SHIFT: Mapping[str, Any] = {"imbalance_ratio": 500_000.0, "draws": 2.0}

# A setting is one entry; a plug-in adds its own: SETTINGS["name"] = Setting(...).
SETTINGS: dict[str, Setting] = {
    "continual": Setting(
        "domains one after another; the method is never reset",
        "CoTTA (Wang et al., 2022); CSC (continual structured change) of DPCore",
        display_name="Continual", citation="wang2022cotta",
    ),
    "reset": Setting(
        "as continual, but the method is reset at each domain, which reveals the boundaries to it",
        "TENT (Wang et al., 2021); reset_each_shift of TTA-bench",
        resets=True,
        display_name="Reset per domain", citation="wang2021tent",
    ),
    "mixed": Setting(
        "all domains shuffled together", f"mixed_domains of {_TTA_BENCH}", "shuffle",
        display_name="Mixed domains", citation="marsden2024roid",
    ),
    "gradual": Setting(
        "in each domain, the severity rises from 1 to `severity` and falls back to 1",
        f"gradual of {_TTA_BENCH}",
        severity_schedule="rising",
        parameters=_SEVERITIES,
        display_name="Gradual", citation="doebler2023rmt",
    ),
    "gradual_cotta": Setting(
        "as gradual, but the first domain starts at the highest severity, which only falls",
        "CoTTA's code for CIFAR10-C (qinenergy/cotta)",
        severity_schedule="falling_first",
        parameters=_SEVERITIES,
        display_name="Gradual (CoTTA)", citation="wang2022cotta",
    ),
    "correlated": Setting(
        "each domain is sorted by class (delta 0), or split into chunks, with each class "
        "distributed over them by Dirichlet(delta)",
        f"correlated of {_TTA_BENCH}; NOTE (Gong et al., 2022)",
        labels="chunks",
        parameters=_SORTED,
        display_name="Correlated", citation="gong2022note",
    ),
    "reset_correlated": Setting(
        "as correlated, with a reset at each domain",
        f"reset_each_shift_correlated of {_TTA_BENCH}",
        labels="chunks",
        resets=True,
        parameters=_SORTED,
        display_name="Correlated, reset per domain", citation="marsden2024roid",
    ),
    "gradual_correlated": Setting(
        "as gradual, and the images of each severity are ordered as in correlated",
        f"gradual_correlated of {_TTA_BENCH}",
        labels="chunks",
        severity_schedule="rising",
        parameters={**_SORTED, **_SEVERITIES},
        display_name="Gradual and correlated", citation="marsden2024roid",
    ),
    "mixed_correlated": Setting(
        "all domains are joined to one, which is ordered as in correlated",
        f"mixed_domains_correlated of {_TTA_BENCH}",
        "shuffle",
        labels="chunks",
        parameters={"delta": 0.01},
        display_name="Mixed and correlated", citation="marsden2024roid",
    ),
    "ptta": Setting(
        "in each domain, each class is distributed over slots by Dirichlet(delta); a batch may "
        "span two domains",
        "RoTTA (Yuan et al., 2023)",
        "continuous",
        labels="slots",
        parameters={"delta": 0.1, "slots": None},
        display_name="PTTA", citation="yuan2023rotta",
    ),
    "label_shift": Setting(
        "each class dominates in turn: it is `imbalance_ratio` times as likely as each other class",
        _SAR,
        labels="shift",
        parameters=_SHIFT,
        display_name="Label shift", citation="niu2023sar",
    ),
    "reset_label_shift": Setting(
        "as label_shift, with a reset at each domain", _SAR, labels="shift", resets=True,
        parameters=_SHIFT,
        display_name="Label shift, reset per domain", citation="niu2023sar",
    ),
    "cdc": Setting(
        "domains recur: the batches of each are distributed over `slots` slots by Dirichlet(delta)",
        "CDC of DPCore (Zhang et al., 2025)",
        "interleave",
        parameters={"delta": 1.0, "slots": 3},
        display_name="CDC", citation="zhang2025dpcore",
    ),
    "smooth": Setting(
        "each domain fades into the next, over `overlap` times the length of a domain",
        "this suite, inspired by the smooth changes of CCC (Press et al., 2023)",
        "cross_fade",
        parameters={"overlap": 0.5},
        display_name="Smooth transitions", citation="press2023rdumb",
    ),
    "markov": Setting(
        "domain and class each follow a Markov chain; a transition matrix sets how long they stay "
        "(correlation) and how unequal their shares are (imbalance)",
        "UniTTA (Du et al., 2024)",
        "markov",
        labels="markov",
        parameters={
            "domain_correlation": 0.85, "domain_imbalance": 1.0, "class_correlation": 0.95,
            "class_imbalance": 1.0, "images_per_state": None,
        },
        display_name="Markov chains", citation="du2024unitta",
    ),
}  # fmt: skip


def setting_display_name(name: str) -> str:
    """The name of a setting in tables and figures; `name` itself if none is declared."""
    setting = SETTINGS.get(name)
    return (setting.display_name if setting else "") or name


def _parameters() -> dict[str, None]:
    """The parameters of all settings without repetition, in the order of the table."""
    return dict.fromkeys(key for setting in SETTINGS.values() for key in setting.parameters)


def _known(name: str) -> str:
    if name in SETTINGS:
        return name
    *others, last = map(repr, SETTINGS)
    close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"input should be {', '.join(others)} or {last}{hint}")


def _enumerate(schema: dict[str, Any]) -> None:
    schema["enum"] = list(SETTINGS)


SettingName = Annotated[str, AfterValidator(_known), Field(json_schema_extra=_enumerate)]


def numbers_of(part: Part | None, count: int) -> range | list[int]:
    """The numbers, of 0 to `count` - 1, of the images of a part.

    Hyper-parameters chosen on the part `tuning` of hold-out domains have seen no image of the part
    `scoring`, also where all domains show the same photographs.
    """
    if part is None:
        return range(count)
    if part == "tuning":
        return range(0, count, TUNING_EVERY)
    return [number for number in range(count) if number % TUNING_EVERY]


class StreamSettings(BaseModel):
    """What a user can choose about a benchmark's stream; benchmarks set their own defaults.

    Example: `StreamSettings(setting="ptta", rounds=10)`. Raises ValueError for a key that the
    setting does not use.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    setting: SettingName = Field(
        "continual", description="the protocol; `ctta-bench list settings` defines them"
    )
    domains: tuple[str, ...] = Field((), description="domains in stream order; empty: all")
    rounds: int = Field(1, ge=1, description="times that the whole sequence is repeated")
    batch_size: int = Field(64, ge=1, description="images per batch")
    examples: int | None = Field(
        None, ge=1, description="images per domain, the first ones; null: all"
    )
    part: Part | None = Field(
        None,
        description="of these images every fifth (tuning) or the others (scoring); null: all",
    )
    order: ImageOrder = Field(
        "file",
        description="within a domain: stored order, shuffled by the seed, or alike: shuffled "
        "equally in all domains",
    )
    # `part` and the keys below are None where they are not used; then they are not part of a cell's
    # identity.
    domain_order: DomainOrder | None = Field(
        None,
        description="order of the domains: random (from the seed) or a published one",
    )
    reset_every: int | None = Field(
        None, ge=1, description="reset after this many images, independent of domain boundaries"
    )
    delta: float | None = Field(
        None, ge=0, le=1e6, description="concentration of the Dirichlet draws; 0: sorted by class"
    )
    slots: int | None = Field(None, ge=1, le=10_000, description="number of slots in ptta and cdc")
    imbalance_ratio: float | None = Field(
        None, ge=1, description="q_max / q_min of label_shift; 1: no shift"
    )
    draws: float | None = Field(
        None,
        gt=0,
        le=100,
        description="images drawn in label_shift, as a multiple of the domain's size",
    )
    overlap: float | None = Field(
        None, ge=0, le=1, description="share of a domain's length over which smooth cross-fades"
    )
    domain_correlation: float | None = Field(
        None,
        ge=0,
        le=1,
        description="probability that the domain stays, in markov; below 1 / domains: independent",
    )
    domain_imbalance: float | None = Field(
        None,
        ge=1,
        le=1e6,
        description="images of the first domain per image of the last, in markov",
    )
    class_correlation: float | None = Field(
        None,
        ge=0,
        le=1,
        description="probability that the class stays, in markov; below 1 / classes: independent",
    )
    class_imbalance: float | None = Field(
        None, ge=1, le=1e6, description="images of the first class per image of the last, in markov"
    )
    images_per_state: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="images of a class in a domain at which markov ends, or its quota; by default "
        "the mean number in the data",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Fill in the defaults of the setting, so that a cell's record states them."""
        name = values.get("setting", cls.model_fields["setting"].default)
        defaults = SETTINGS[name].parameters if isinstance(name, str) and name in SETTINGS else {}
        given = {key: value for key, value in values.items() if value is not None}
        return {**values, **{k: v for k, v in defaults.items() if v is not None}, **given}

    @field_validator("*")
    @classmethod
    def _home_folder(cls, value: Any) -> Any:
        """A file that a benchmark's settings name may begin with `~`."""
        return expanded(value) if isinstance(value, Path) else value

    @model_validator(mode="after")
    def _fits_the_setting(self) -> "StreamSettings":
        kind = self.kind
        for key in _parameters():
            if getattr(self, key, None) is not None and key not in kind.parameters:
                owners = [name for name, s in SETTINGS.items() if key in s.parameters]
                raise ValueError(
                    f"{key} is not used in setting {self.setting}, but in {', '.join(owners)}"
                )
        if self.domain_order is not None and kind.join == "shuffle":
            raise ValueError(f"domain_order has no effect in setting {self.setting}: leave it out")
        if self.reset_every is not None and kind.resets:
            raise ValueError(f"reset_every: setting {self.setting} already resets at each domain")
        if self.delta == 0 and kind.labels != "chunks" and "delta" in kind.parameters:
            raise ValueError(f"delta must be above 0 in setting {self.setting}")
        if kind.severity_schedule and "severities" not in type(self).model_fields:
            raise ValueError(
                f"setting {self.setting} needs severities, which this benchmark does not have"
            )
        return self

    @property
    def kind(self) -> Setting:
        """The protocol that `setting` names."""
        return SETTINGS[self.setting]

    def severities_at(self, visit: int) -> tuple[int, ...]:
        """The severities of the domain visited as number `visit`; (0,): the benchmark's own."""
        return (0,)

    def own(self) -> dict[str, Any]:
        """Those of the benchmark alone, neither of StreamSettings nor of CorruptionSettings."""
        of_streams = (*StreamSettings.model_fields, *CorruptionSettings.model_fields)
        values = self.model_dump(mode="json")
        return {key: value for key, value in values.items() if key not in of_streams}

    def record(self) -> dict[str, Any]:
        """The content of cell.yaml: every key, without optional ones that are None."""
        values = self.model_dump(mode="json")
        optional = {*_parameters(), "part", "domain_order", "reset_every"}
        return {k: v for k, v in values.items() if v is not None or k not in optional}


class CorruptionSettings(StreamSettings):
    """Settings of the `-C` benchmarks: StreamSettings with severities from 1 to 5.

    Example: `CorruptionSettings(setting="gradual", severity=3).severities` is `(1, 2, 3, 2, 1)`.
    """

    severity: int = Field(5, ge=1, le=5, description="severity of the corruptions")
    severities: tuple[int, ...] | None = Field(
        None,
        min_length=1,
        description="severity schedule of gradual; by default 1 up to `severity` and back",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_severities(cls, values: Any) -> Any:
        name = values.get("setting", cls.model_fields["setting"].default)
        kind = SETTINGS.get(name) if isinstance(name, str) else None
        peak = values.get("severity", cls.model_fields["severity"].default)
        if (
            kind
            and kind.severity_schedule
            and values.get("severities") is None
            and peak in range(1, 6)
        ):
            return {**values, "severities": (*range(1, peak + 1), *range(peak - 1, 0, -1))}
        return values

    @model_validator(mode="after")
    def _severities_exist(self) -> "CorruptionSettings":
        if self.severities is not None and not set(self.severities) <= set(range(1, 6)):
            raise ValueError(f"severities are numbers from 1 to 5, not {list(self.severities)}")
        if self.kind.severity_schedule and self.severities is None:
            raise ValueError(f"severity {self.severity!r}: write a whole number from 1 to 5")
        return self

    def severities_at(self, visit: int) -> tuple[int, ...]:
        """The severities of the domain visited as number `visit`; (0,): only `severity`."""
        if self.severities is None:
            return (0,)
        if self.kind.severity_schedule == "falling_first" and visit == 0:
            return self.severities[self.severities.index(max(self.severities)) :]
        return self.severities


class SegmentationSettings(StreamSettings):
    """Settings of segmentation benchmarks: by default one image per batch."""

    batch_size: int = Field(1, ge=1, description="images per batch; the protocol uses 1")

    @model_validator(mode="after")
    def _needs_no_class_of_an_image(self) -> "SegmentationSettings":
        if self.kind.labels:
            graded = "severities" in type(self).model_fields
            others = ", ".join(
                name
                for name, s in SETTINGS.items()
                if not s.labels and (graded or not s.severity_schedule)
            )
            raise ValueError(
                f"setting {self.setting} orders images by their class, but an image for "
                f"segmentation has no single class: choose {others}"
            )
        return self


class CorruptedMapSettings(SegmentationSettings, CorruptionSettings):
    """Settings of corrupted images with label maps: one image per batch, and severities.

    Example: `CorruptedMapSettings(setting="gradual", severity=2).severities` is `(1, 2, 1)`.
    """
