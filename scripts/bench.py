"""The cost of adaptation, and of large grids: `make bench`, docs/performance.md.

    python scripts/bench.py [COMMAND] [--help]

steps         steps of methods, the engine and start-up, compared with what the arithmetic needs;
              `make bench`; the default
segmentation  the same for segmentation, and the number of maps in memory; `make bench`
forms         PAID, LoRA and DoRA in each form of their product, compared with TENT
growth        time and memory by batch, rank, tokens, model and stream
gpu           what needs a GPU: `scripts/gpu_check.sh`
scale         planning, status and collecting of 100,000 cells
profile       shares of the time of an experiment

Subject and reference run in turns in one process, and the median of their ratios is used, so that
changes in the machine's speed do not matter. The exit code is 1 if a goal is missed.
"""

import argparse
import importlib
import sys

COMMANDS = ("steps", "segmentation", "forms", "growth", "gpu", "scale", "profile")


def main(words: list[str]) -> int:
    """Run a command; returns the exit code."""
    text = (__doc__ or "").splitlines()
    top = argparse.ArgumentParser(
        description=text[0],
        epilog="\n".join(text[4:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        words = ["steps", *words]
    top.add_argument("command", nargs="?", default="steps", choices=COMMANDS)
    command = top.parse_args(words[:1]).command
    module = importlib.import_module(f"costs.{command}")
    parser = argparse.ArgumentParser(
        prog=f"{top.prog} {command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    return int(module.run(parser.parse_args(words[1:])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
