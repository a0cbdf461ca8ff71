"""The states of a cell: every edge of the drawing, with the evidence before and after it."""

import re
from dataclasses import replace
from typing import Any

import pytest

from ctta_bench.launch import states
from ctta_bench.launch.states import STATES, Evidence, Submission, judge

SUBMITTED = Submission("submitted", job="7_0")
NEW = Evidence()
POOL = Evidence(executor="local", lives=True)
SLURM = Evidence(executor="slurm", submission=SUBMITTED, job="PENDING", job_reason="Priority")
TAKEN = replace(SLURM, job="RUNNING", started=True, end="running", done=4, total=10)
OWNED = replace(TAKEN, folder="running", reason="at batch 4 of 10")
FAILED = Evidence(folder="failed", reason="no memory", done=4, total=10)
TIMEOUT = replace(TAKEN, job="TIMEOUT")
CANCELLED = replace(TAKEN, cancelled=True, end="interrupted", end_reason="SIGTERM")
PREEMPTED = replace(TAKEN, job="PENDING", end="interrupted", end_reason="SIGTERM")
FINISHING = replace(TAKEN, job="COMPLETED", end="done", recent=lambda: True)
DONE = Evidence(folder="done", reason="")
AWAY = replace(SLURM, job="", answers=False)


def again(before: Evidence) -> Evidence:
    """The cell in a job of a new launch, which waits."""
    return replace(SLURM, folder=before.folder, reason=before.reason, done=before.done, total=10)


# Edge: evidence before and after, and words of the reason after it. Several ways may lead along it.
WALKS: dict[str, list[tuple[Evidence, Evidence, str]]] = {
    "missing -> queued": [
        (NEW, SLURM, "waits (Priority)"),
        (NEW, POOL, "waits for a worker"),
        (NEW, replace(POOL, executor="debug"), "waits for the cells before it"),
        (NEW, replace(SLURM, submission=Submission("intended"), job="", lives=True), "submitted"),
        (NEW, replace(SLURM, job="RUNNING", started=True), "waits in a running job"),
    ],
    "failed -> queued": [(FAILED, again(FAILED), "waits (Priority); failed before: no memory")],
    "timeout -> queued": [(TIMEOUT, again(TIMEOUT), "waits (Priority); resumes at batch 4")],
    "cancelled -> queued": [(CANCELLED, again(CANCELLED), "resumes at batch 4")],
    "queued -> running": [
        (SLURM, TAKEN, "starting"),
        (SLURM, OWNED, "at batch 4 of 10"),
        (POOL, replace(POOL, end="running"), "starting"),
    ],
    "queued -> failed": [
        (SLURM, replace(SLURM, job="FAILED", output=lambda: "module: not found"),
         "job 7_0 ended (FAILED) before Python started: module: not found"),
        (SLURM, replace(SLURM, job="FAILED"), "before Python started, and printed nothing"),
        (SLURM, replace(SLURM, job="", output=lambda: "no such file"),
         "job 7_0 has left the queue before Python started: no such file"),
        (SLURM, replace(SLURM, job="FAILED", started=True, broken="its worker ended"),
         "its worker ended"),
        (again(FAILED), replace(again(FAILED), job="COMPLETED", started=True), "no memory"),
        (POOL, replace(POOL, lives=False, started=True, broken="its worker ended"),
         "its worker ended"),
    ],
    "queued -> timeout": [
        (SLURM, replace(SLURM, job="TIMEOUT", started=True), "timeout after 0 of ? batches"),
    ],
    "queued -> cancelled": [
        (SLURM, replace(SLURM, cancelled=True), "cancelled before its first batch"),
        (SLURM, replace(SLURM, job="CANCELLED"), "cancelled before its first batch"),
        (POOL, replace(POOL, cancelled=True), "cancelled before its first batch"),
    ],
    "queued -> missing": [
        (SLURM, replace(SLURM, submission=Submission("refused", "QOSMaxSubmit"), job=""),
         "not submitted: QOSMaxSubmit"),
        (SLURM, replace(SLURM, submission=Submission("intended"), job=""),
         "not submitted: its launcher ended before"),
        (SLURM, replace(SLURM, job="COMPLETED", started=True), "before this cell; `grid` submits"),
        (SLURM, replace(SLURM, job="NODE_FAIL"), "ended (NODE_FAIL) before this cell"),
        (POOL, replace(POOL, lives=False), "not started"),
    ],
    "queued -> unknown": [
        (SLURM, AWAY, "Slurm does not answer"),
        (SLURM, replace(AWAY, submission=Submission("intended")), "its launcher ended while"),
    ],
    "unknown -> queued": [(AWAY, SLURM, "waits (Priority)")],
    "running -> finishing": [
        (OWNED, FINISHING, "the result is not visible yet"),
        (OWNED, replace(TAKEN, job="COMPLETING"), "its job is ending"),
        (OWNED, replace(NEW, done=10, total=10, recent=lambda: True), "is being written"),
    ],
    "running -> done": [(OWNED, DONE, "")],
    "running -> preempted": [
        (OWNED, PREEMPTED, "at batch 4, waits to resume (Priority)"),
        (OWNED, replace(TAKEN, job="NODE_FAIL", recent=lambda: True), "waits to resume"),
    ],
    "running -> failed": [
        (OWNED, replace(TAKEN, end="failed", end_reason="no memory"), "no memory"),
        (OWNED, replace(TAKEN, job="OUT_OF_MEMORY"), "ended (OUT_OF_MEMORY) during this cell"),
        (OWNED, FAILED, "no memory"),
    ],
    "running -> timeout": [
        (OWNED, TIMEOUT, "timeout after 4 of 10 batches"),
        (OWNED, replace(PREEMPTED, job="COMPLETED", end_reason="SIGUSR2"), "`grid` resumes it"),
    ],
    "running -> cancelled": [
        (OWNED, CANCELLED, "cancelled at batch 4"),
        (OWNED, replace(TAKEN, job="CANCELLED"), "cancelled at batch 4"),
    ],
    "running -> missing": [
        (OWNED, replace(PREEMPTED, job="COMPLETED"), "stopped by SIGTERM after 4 of 10 batches"),
        (OWNED, replace(POOL, lives=False, end="interrupted", end_reason="SIGTERM", done=4),
         "stopped by SIGTERM"),
        (OWNED, replace(NEW, reason="stopped after batch 4 of 10"), "stopped after batch 4"),
    ],
    "finishing -> done": [(FINISHING, DONE, "")],
    "finishing -> failed": [
        (FINISHING, replace(FINISHING, recent=lambda: False), "but there is no result"),
    ],
    "preempted -> running": [(PREEMPTED, OWNED, "at batch 4 of 10")],
    "preempted -> cancelled": [
        (PREEMPTED, replace(PREEMPTED, cancelled=True), "cancelled at batch 4"),
    ],
}  # fmt: skip


def test_a_running_cell_that_was_cancelled_is_said_to_be() -> None:
    assert judge(replace(OWNED, cancelled=True)) == (
        "running",
        "at batch 4 of 10; is being cancelled",
    )


def edges() -> list[str]:
    """The edges that the module lists."""
    return re.findall(r"^(\w+ -> \w+): ", str(states.__doc__), re.MULTILINE)


@pytest.mark.parametrize("edge", edges())
def test_every_edge_is_walked(edge: str) -> None:
    first, last = edge.split(" -> ")
    for before, after, words in WALKS[edge]:
        assert judge(before)[0] == first
        assert judge(after)[0] == last
        assert words in judge(after)[1]


def test_no_edge_is_walked_that_the_drawing_lacks() -> None:
    assert sorted(WALKS) == sorted(edges())
    drawing = str(states.__doc__).split("Every edge")[0]
    assert {word for edge in edges() for word in edge.split(" -> ")} == set(STATES)
    assert [state for state in STATES if state not in drawing] == []


def test_every_combination_of_facts_has_one_of_the_states_and_no_word_of_code() -> None:
    values: dict[str, list[Any]] = {
        "folder": ["incomplete", "failed"],
        "executor": ["", "slurm", "local", "debug"],
        "lives": [True, False],
        "cancelled": [True, False],
        "submission": [SUBMITTED, *(Submission(s, "x") for s in ("unsent", "intended", "refused"))],
        "answers": [True, False],
        "job": ["", "PENDING", "RUNNING", "COMPLETING", "FAILED", "NODE_FAIL", "TIMEOUT"],
        "end": ["", "running", "interrupted", "failed", "done"],
    }  # fmt: skip
    found = [Evidence()]
    for key, choices in values.items():
        found = [replace(known, **{key: value}) for known in found for value in choices]
    for known in found:
        state, reason = judge(known)
        assert state in STATES and "None" not in reason
