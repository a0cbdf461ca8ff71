"""Around a submission to a real Slurm: callers, refusals, launchers that die, exits of jobs."""

import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from ctta_bench.launch.plan import launches
from tests.launches import PLUGINS, call, grid, rows, slow, start, states, until, write_grid
from tests.slurm.test_slurm import ended, jobs_of, profile, slurm, submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


def wrap(folder: Path, name: str, before: str = "", after: str = "") -> Path:
    """A folder for PATH whose program `name` runs shell lines before and after the real one.

    `$count` is how often it has been called, `$code` and `$said` what the real one ended with.
    """
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    real = slurm("which", name).strip()
    counter = place / f"{name}.calls"
    (place / name).write_text(
        f"#!/bin/bash\necho x >>'{counter}'\ncount=$(wc -l <'{counter}')\n{before}\n"
        f'said=$("{real}" "$@"); code=$?\n{after}\necho "$said"\nexit $code\n'
    )
    (place / name).chmod(stat.S_IRWXU)
    return place


def put_on_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")


def test_the_environment_of_the_caller_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a shell of `salloc --ntasks=2`: jobs died, or began their worker twice."""
    for name, value in {
        "SLURM_NTASKS": "2",
        "SLURM_NPROCS": "2",
        "SLURM_CPUS_PER_TASK": "3",
        "SBATCH_PARTITION": "nowhere",
        "SRUN_CPUS_PER_TASK": "4",
        "SQUEUE_STATES": "COMPLETED",
        "SLURM_ARRAY_TASK_ID": "5",
    }.items():
        monkeypatch.setenv(name, value)
    entries = ("source", "{name: tent, set: {lr: 0.01}}")
    runs = submit(tmp_path, write_grid(tmp_path, *entries), text="cpus: 2\n")
    until(lambda: states(runs) == ["done"] * 2, what="two cells")
    (launch,) = launches(runs)
    begun = [worker for worker, event in launch.events() if event.get("state") == "started"]
    assert sorted(begun) == [0, 1]
    (root,) = {job.partition("_")[0] for job in jobs_of(runs)}
    steps = until(lambda: slurm("sacct", "-n", "-P", "-j", root, "-o", "JobID,NTasks,State"))
    assert [line.split("|")[1] for line in steps.splitlines() if ".0|" in line] == ["1", "1"]


def test_what_a_job_says_before_python_starts_is_the_reason_and_it_is_retried(
    tmp_path: Path,
) -> None:
    file = write_grid(tmp_path, "source")
    runs = submit(tmp_path, file, text='setup: ["echo no module torch/9 >&2", "exit 3"]\n')
    until(lambda: ended(runs), what="the job")
    until(lambda: states(runs) == ["failed"])
    (row,) = rows(runs).values()
    assert row["reason"].endswith("before Python started: no module torch/9")
    assert "no module torch/9" in call("logs", runs / row["cell"]).stdout
    again = submit(tmp_path, file, "--retry", "failed")
    assert len(launches(again)) == 2
    call("cancel", again)


def test_an_array_whose_launcher_was_killed_is_not_submitted_twice_and_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, runs = write_grid(tmp_path, slow(10.0), "source"), tmp_path / "runs" / "trial"
    with monkeypatch.context() as patch:
        put_on_path(wrap(tmp_path, "sbatch", after="kill -KILL $PPID"), patch)
        options = ("--profile", profile(tmp_path), "--out", runs, "--device", "cpu")
        launcher = start("grid", file, *PLUGINS, *options)
        launcher.communicate(timeout=200)
    assert launcher.returncode == -signal.SIGKILL
    assert jobs_of(runs) == {}  # only the intent is known
    until(lambda: all(row["job"] for row in rows(runs).values()), what="the mark")
    again = grid(file, "--profile", profile(tmp_path), "--out", runs)
    assert again.exit_code == 0, again.output
    assert "not submitted again" in again.stderr and len(launches(runs)) == 1
    until(lambda: "done" in states(runs), what="the fast cell")
    # The fast one may be ending.
    assert re.search("Slurm jobs? and 0 processes", call("cancel", runs).stdout)
    name = launches(runs)[0].mark(0)
    until(lambda: name not in slurm("squeue", "-h", "-o", "%k"), what="the end of the orphan")
    assert states(runs) == ["cancelled", "done"]


def test_a_limit_met_at_the_second_of_three_arrays_says_what_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_grid(tmp_path, "source", more=f"seeds: [{', '.join(map(str, range(9)))}]")
    runs = tmp_path / "runs" / "trial"
    refusal = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
    before = f"[ $count = 2 ] && {{ echo '{refusal}' >&2; exit 1; }}"
    with monkeypatch.context() as patch:
        put_on_path(wrap(tmp_path, "sbatch", before=before), patch)
        refused = grid(file, "--profile", profile(tmp_path), "--out", runs)
    assert refused.exit_code == 2
    assert "QOS policy" in refused.stderr and "4 of 9 jobs are submitted (" in refused.stderr
    found = rows(runs).values()
    assert sum(row["state"] == "missing" for row in found) == 5
    assert all("QOS policy" in row["reason"] for row in found if row["state"] == "missing")
    rest = grid(file, "--profile", profile(tmp_path), "--out", runs)
    assert rest.exit_code == 0 and "5 cells submitted" in rest.stdout
    call("cancel", runs)


def test_a_controller_that_is_away_is_tried_again_and_nothing_is_submitted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call is not taken; the second is, but its answer is lost."""
    monkeypatch.setattr("ctta_bench.launch.slurm.PAUSES", (0.5, 0.5, 0.5))
    away = "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    lost = "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1"
    place = wrap(
        tmp_path, "sbatch", f"[ $count = 1 ] && {{ {away}; }}", f"[ $count = 2 ] && {{ {lost}; }}"
    )
    file, runs = write_grid(tmp_path, "source"), tmp_path / "runs" / "trial"
    with monkeypatch.context() as patch:
        put_on_path(place, patch)
        result = grid(file, "--profile", profile(tmp_path), "--out", runs)
    assert result.exit_code == 0, result.output
    assert "Unable to contact slurm controller" in result.stderr
    assert (place / "sbatch.calls").read_text() == "x\n" * 2
    until(lambda: states(runs) == ["done"], what="the cell")
    (job,) = jobs_of(runs)
    (launch,) = launches(runs)
    listed = slurm("squeue", "-h", "-t", "all", "-o", "%i %k").splitlines()
    assert [line.split()[0] for line in listed if launch.mark(0) in line] == [job]


def test_a_signal_while_python_goes_down_after_the_last_cell_fails_no_job(tmp_path: Path) -> None:
    leaving = tmp_path / "leaving.py"
    leaving.write_text(
        "import atexit, pathlib, time\n"
        "def leave():\n"
        f"    pathlib.Path({str(tmp_path / 'leaving')!r}).touch()\n"
        "    time.sleep(6)\n"
        "atexit.register(leave)\n"
    )
    file, runs = write_grid(tmp_path, "source"), tmp_path / "runs" / "trial"
    options = ("--profile", profile(tmp_path), "--out", runs, "--plugin", leaving)
    assert grid(file, *options).exit_code == 0
    (job,) = jobs_of(runs)
    until((tmp_path / "leaving").exists, what="the end of the worker")
    for name in ("TERM", "USR2", "USR1"):
        slurm("scancel", f"--signal={name}", job)
    until(lambda: ended(runs), what="the end of the job")
    ends = until(lambda: final_state_in_accounts(job), what="the job's end in the accounts")
    assert ends == "COMPLETED"
    assert states(runs) == ["done"]


def final_state_in_accounts(job: str) -> str:
    """The state in which a job ended; "" while the accounts, later than squeue, have none."""
    state = subprocess.run(
        ["sacct", "-n", "-P", "-X", "-j", job, "-o", "State"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()
    return "" if state in {"PENDING", "RUNNING", "COMPLETING"} else state
