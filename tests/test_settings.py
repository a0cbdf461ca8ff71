"""Settings: which keys belong to which protocol, and what of them a cell's record states."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.validation import validate
from ctta_bench.errors import ConfigError
from ctta_bench.stream import Benchmark, settings
from ctta_bench.stream.settings import SETTINGS, CorruptionSettings, Setting, StreamSettings
from tests.conftest import TOY


def made(**values: Any) -> CorruptionSettings:
    return validate(CorruptionSettings, values, "benchmark c")


def test_the_names_a_user_may_type_are_those_of_the_table() -> None:
    assert [made(setting=name).setting for name in SETTINGS] == list(SETTINGS)
    assert CorruptionSettings.model_json_schema()["properties"]["setting"]["enum"] == [*SETTINGS]


def test_a_plug_in_adds_a_setting_with_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "SETTINGS", SETTINGS.copy())
    plugin = tmp_path / "reset_ptta.py"
    plugin.write_text(
        "from ctta_bench.stream import settings\n"
        "settings.SETTINGS['reset_cdc'] = settings.Setting(\n"
        "    'cdc, with resets', 'own', 'interleave',\n"
        "    resets=True, parameters={'delta': 0.5, 'slots': 2})\n"
    )
    plugins = ("--plugin", str(plugin), "--plugin", str(TOY))

    listed = CliRunner().invoke(app, ["list", "settings", *plugins]).stdout
    options = ["--setting", "reset_cdc", "--set", "batch_size=8", *plugins]
    done = CliRunner().invoke(app, ["run", "tent", "toy", *options, "--format", "json"])

    assert "reset_cdc" in listed and "delta=0.5 slots=2" in listed
    assert json.loads(done.stdout)["counters"]["resets"] > 0
    (file,) = tmp_path.rglob("cell.yaml")
    assert yaml.safe_load(file.read_text())["benchmark"]["delta"] == 0.5
    unused = r"slots is not used in setting smooth, but in ptta, cdc, reset_cdc"
    with pytest.raises(ConfigError, match=unused):
        made(setting="smooth", slots=2)


def test_the_names_of_the_last_release_still_work_with_one_warning_each() -> None:
    with pytest.warns(
        FutureWarning, match=r"Setting.join 'deal' is called 'interleave' since"
    ) as warned:
        assert Setting("d", "s", "deal").join == "interleave"  # type: ignore[arg-type]
    assert len(warned) == 1
    with pytest.warns(FutureWarning, match=r"severity_schedule 'rise' is called 'rising' since"):
        rising = Setting("d", "s", walk="rise")
    with pytest.warns(FutureWarning, match=r"'walk' is called 'severity_schedule' since"):
        assert getattr(rising, "walk") == rising.severity_schedule == "rising"  # noqa: B009
    with pytest.warns(FutureWarning, match=r"other_labels is called Quarter.different_label_set"):

        class Quarter(Benchmark):
            other_labels = True

    assert Quarter.different_label_set


def test_the_record_of_a_plain_setting_has_only_the_keys_of_earlier_releases() -> None:
    earlier = ["setting", "domains", "rounds", "batch_size", "examples", "order", "severity"]
    for setting in ("continual", "reset", "mixed"):
        assert list(made(setting=setting).record()) == earlier
    assert made().record()["examples"] is None


def test_the_record_of_a_setting_with_parameters_states_them() -> None:
    assert made(setting="ptta").record()["delta"] == 0.1
    assert "slots" not in made(setting="ptta").record()  # the number of classes decides
    assert made(setting="cdc", slots=5).record()["slots"] == 5
    assert made(setting="gradual").record()["severities"] == [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert made(domain_order="cotta3", reset_every=9).record()["domain_order"] == "cotta3"


def test_a_parameter_given_as_none_is_the_setting_s_default() -> None:
    assert made(setting="mixed_correlated", delta=None).delta == 0.01


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"delta": 0.1}, "delta is not used in setting continual, but in correlated, "),
        ({"setting": "cdc", "overlap": 0.1}, "overlap is not used in setting cdc, but in smooth"),
        ({"severities": [1, 2]}, "severities is not used in setting continual, but in gradual, "),
        ({"setting": "ptta", "delta": 0}, "delta must be above 0 in setting ptta"),
        ({"setting": "mixed", "domain_order": "random"}, "domain_order has no effect in setting"),
        ({"setting": "reset", "reset_every": 5}, "setting reset already resets at each domain"),
        (
            {"setting": "gradual", "severities": [3, 6]},
            "severities are numbers from 1 to 5, not [3, 6]",
        ),
        ({"setting": "gradual", "severity": 6}, "benchmark c.severity: 6: input should be less"),
        ({"setting": "gradually"}, "benchmark c.setting: 'gradually': input should be 'continual'"),
        ({"setting": "gradually"}, "'smooth' or 'markov'; did you mean 'gradual'?"),
        ({"setting": ["gradual"]}, "benchmark c.setting"),
        ({"batch_size": 0}, "benchmark c.batch_size: 0: input should be greater than or equal to"),
        ({"domain_order": "cotta10"}, "benchmark c.domain_order: 'cotta10': input should be "),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(values: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**values)
    assert message in str(caught.value)


def test_gradual_is_refused_where_there_are_no_severities() -> None:
    with pytest.raises(ConfigError, match="setting gradual needs severities"):
        validate(StreamSettings, {"setting": "gradual"}, "benchmark plain")


def test_the_severity_schedule_of_gradual_turns_at_the_severity() -> None:
    assert made(setting="gradual", severity=3).severities_at(0) == (1, 2, 3, 2, 1)
    assert made(setting="gradual", severity=1).severities_at(4) == (1,)
    assert made(setting="gradual", severities=(2, 4)).severities_at(1) == (2, 4)
    assert made(severity=3).severities_at(0) == (0,)


def test_cotta_s_first_domain_falls_from_the_highest_severity() -> None:
    falling = made(setting="gradual_cotta")
    assert falling.severities_at(0) == (5, 4, 3, 2, 1)
    assert falling.severities_at(1) == falling.severities_at(14) == (1, 2, 3, 4, 5, 4, 3, 2, 1)
