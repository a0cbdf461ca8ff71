"""Profiles: where they are found, what they refuse, and what becomes of them in a job script."""

import re
from pathlib import Path

import pytest
from submitit.slurm.slurm import _make_sbatch_string

from ctta_bench.errors import ConfigError
from ctta_bench.launch.profiles import Profile, load_profile, parameters_of


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def put(place: str, partition: str) -> Path:
    file = Path(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"partition: {partition}\n")
    return file


def test_a_profile_of_the_project_goes_before_the_user_s_own() -> None:
    put("config/ctta-bench/profiles/gpu.yaml", "mine")
    assert load_profile("gpu").partition == "mine"
    put("profiles/gpu.yaml", "ours")
    assert load_profile("gpu").partition == "ours"


def test_a_profile_is_found_by_path() -> None:
    assert load_profile(str(put("else where/x.yaml", "there"))).partition == "there"


def test_an_unknown_profile_names_a_close_one_and_the_places() -> None:
    put("profiles/cluster.yaml", "p")
    with pytest.raises(ConfigError, match=r"did you mean 'cluster'\? Searched clutser.yaml in"):
        load_profile("clutser")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partion: x", "did you mean 'partition'"),
        ("time_minutes: soon", "time_minutes.*'soon'"),
        ("cpus: 0", "cpus.*greater"),
        ('partition: "a\\nb"', "partition"),
        ('options: {comment: "a\\nrm -rf x"}', "options"),
        ('environment: {"A B": c}', "environment"),
        ('setup: ["a\\nb"]', "setup"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_key(text: str, words: str) -> None:
    Path("p.yaml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=words):
        load_profile("p.yaml")


@pytest.mark.parametrize(("minutes", "lead"), [(1, 12), (5, 60), (60, 90), (1440, 90)])
def test_the_warning_before_the_end_fits_the_wall_time(minutes: int, lead: int) -> None:
    assert Profile(time_minutes=minutes).lead_seconds == lead


def test_what_users_write_is_quoted_in_the_job_script() -> None:
    nasty = "x; touch hacked $(touch hacked) `touch hacked` '\""
    values = {
        "partition": nasty,
        "account": nasty,
        "constraint": nasty,
        "options": {"comment": nasty},
    }
    script = _make_sbatch_string("true", "/tmp/a b", **parameters_of(Profile(**values)))
    outside = [line for line in script.splitlines() if "hacked" in line]
    assert len(outside) == 4
    assert all(re.match(r"#SBATCH --[a-z-]+='x; touch", line) for line in outside)
