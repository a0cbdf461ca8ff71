"""One plain command per job, for any scheduler: they share nothing but the folder of runs.

RUNS/.launch/ID/shell/jobs.txt   one command per line
RUNS/.launch/ID/shell/pbs.sh     ... and other templates that run each line once

A command may be run again and at the same time as others: each cell has one owner, and finished
cells are kept.
"""

import json
import re
import shlex
import string
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ctta_bench.launch.plan import Launch
from ctta_bench.launch.profiles import Profile

FOLDER = "shell"
COMMANDS = "jobs.txt"
POOL = 4  # commands at a time, where a pool on one machine runs them
INDENT = " " * 14  # of the command in kubernetes.yaml


class _Template(string.Template):
    """`@name` is replaced; shells use the dollar sign."""

    delimiter = "@"


def emit(launch: Launch, profile: Profile) -> Path:
    """Write the commands of a launch and the templates; returns the file of the commands."""
    folder = launch.folder / FOLDER
    folder.mkdir()
    commands = [command_of(launch, job) for job in range(launch.number_of_jobs)]
    file = folder / COMMANDS
    file.write_text("".join(f"{command}\n" for command in commands), encoding="utf-8")
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"ctta-{launch.directory.name}").strip("-")[:50]
    hours, minutes = divmod(profile.time_minutes, 60)
    count, limit = len(commands), f"%{profile.parallel}" if profile.parallel else ""
    values = {
        "name": name,
        "dns_name": name.lower(),
        "count": count,
        "at_once": min(profile.parallel or count, count),
        "pool": profile.parallel or POOL,
        "limit": limit,
        # PBS refuses an array of one.
        "pbs_array": f"#PBS -J 1-{count}{limit}" if count > 1 else "# no array",
        "cpus": profile.cpus,
        "gpus": profile.gpus or 0,
        "pbs_gpus": f":ngpus={profile.gpus}" if profile.gpus else "",
        "lsf_gpus": f'#BSUB -gpu "num={profile.gpus}"' if profile.gpus else "# no GPU",
        "sge_gpus": f",gpu={profile.gpus}" if profile.gpus else "",
        "memory_mb": int((profile.memory_gb or 4) * 1024),
        "minutes": profile.time_minutes,
        "walltime": f"{hours:02d}:{minutes:02d}:00",
        "file": shlex.quote(str(file)),
        "launch": shlex.quote(str(launch.folder)),
        "setup": "".join(f"{line}\n" for line in profile.setup),
        "setup_indented": "".join(f"{line}\n{INDENT}" for line in profile.setup),
        "folder": json.dumps(str(launch.directory)),
    }
    for template in _templates():
        text = _Template(template.read_text("utf-8")).substitute(values)
        (folder / template.name).write_text(text, encoding="utf-8")
    return file


def command_of(launch: Launch, job: int) -> str:
    """The shell command of one job."""
    script = Path(sys.executable).with_name("ctta-bench")
    program = [str(script)] if script.is_file() else [sys.executable, "-m", "ctta_bench"]
    return shlex.join([*program, "work", str(launch.folder), str(job)])


def _templates() -> Sequence[Path]:
    with resources.as_file(resources.files("ctta_bench.launch") / "templates") as folder:
        return sorted(folder.iterdir())
