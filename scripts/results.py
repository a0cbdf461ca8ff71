"""Make docs/results and the README's table: run the commands, and copy what they report.

python scripts/results.py [PAGE ...] [--no-run] [--runs DIR]   # pages by name: paid, README
python scripts/results.py --demo                               # print the README's table alone

Every `ctta-bench` line of a page's sh blocks is run, in order. Finished runs are not repeated, so a
second call resumes. Then tables (CSV, and the marked ones on the page) and figures are copied from
the reports. With --no-run they come from existing runs; a file without its run is reported.
The README's table comes from the demo, the experiment `quickstart`.
"""

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ctta_bench.analysis.read.error_model import LEVEL
from ctta_bench.analysis.table.table import MISSING, signed
from ctta_bench.analysis.tables.leaderboard import BETTER, WORSE
from ctta_bench.registry import METHODS
from ctta_bench.scoring.metric import printed

README = Path(__file__).parents[1] / "README.md"
RESULTS = README.parent / "docs" / "results"
DEMO, DEMO_MODELS = "quickstart", {"ViT": "scenes_vit", "CNN": "scenes_cnn"}
SEARCH = "tune_"  # how the folders of `ctta-bench tune` begin; it writes their table itself
# Each file below docs/results: the folder of runs, the file of their report (or of a search's
# folder), and words of its caption where several files match.
FILES: dict[str, tuple[str, ...]] = {
    "embedded/tuned.csv": ("tune_fashion_c", "searched.csv"),
    "embedded/tuned_cnn.csv": ("tune_fashion_c_fashion_cnn", "searched.csv"),
    "embedded/vit.csv": ("embedded", "tables/*fashion_vit-????????.csv"),
    "embedded/cnn.csv": ("embedded_cnn", "tables/*fashion_cnn-????????.csv"),
    "embedded/orders.csv": ("embedded_orders", "tables/*fashion_vit-????????-orders.csv"),
    "embedded/settings.csv": ("embedded_settings", "tables/fashion_c-fashion_vit-settings.csv"),
    "embedded/cost.csv": ("embedded_measured", "tables/measured-cost-fashion_c-fashion_vit-*.csv"),
    "embedded/cost_cnn.csv": (
        "embedded_measured",
        "tables/measured-cost-fashion_c-fashion_cnn-*.csv",
    ),
    "paid/component.csv": ("component", "tables/*fashion_vit-????????.csv"),
    "paid/warmup.csv": ("warmup", "tables/*fashion_vit-????????.csv"),
    "paid/side.csv": ("wrong_side", "tables/*fashion_vit-????????.csv"),
    "paid/layers.csv": ("layers", "tables/*fashion_vit-????????.csv"),
    "paid/rank.csv": ("rank", "tables/*fashion_vit-????????.csv"),
    "paid/lambda.csv": ("lambda", "tables/*fashion_vit-????????.csv"),
    "paid/source_samples.csv": ("source_samples", "tables/*fashion_vit-????????.csv"),
    "paid/batch_size.csv": ("batch_size", "figures/*-batch_size.csv"),
    "paid/ten_rounds.csv": ("ten_rounds", "tables/*fashion_vit-????????-rounds.csv"),
    "paid/settings_rate.csv": ("settings_rate", "tables/*fashion_vit-????????.csv"),
    "paid/adapter_rate.csv": ("adapter_rate", "tables/*fashion_vit-????????.csv"),
    "paid/matched.csv": ("matched", "tables/*fashion_vit-????????.csv"),
    "paid/preprocessing_true.csv": (
        "preprocessing",
        "tables/*fashion_vit-????????.csv",
        "the checkpoint's own",
    ),
    "paid/preprocessing_lineage.csv": (
        "preprocessing",
        "tables/*fashion_vit-????????.csv",
        "as in earlier papers",
    ),
    "paid/orders.csv": ("orders", "tables/*fashion_vit-????????.csv"),
    "paid/geometry.csv": ("geometry_fashion", "tables/geometry-*-????????.csv"),
    "paid/cost.csv": ("cost", "tables/*fashion_vit-*-cost.csv"),
    "scenes/tuned.csv": ("tune_scenes_c", "searched.csv"),
    "scenes/leaderboard.csv": ("scenes", "tables/*scenes_vit-????????-leaderboard.csv"),
    "scenes/vit.csv": ("scenes", "tables/*scenes_vit-????????.csv"),
    "scenes/cost.csv": ("scenes_measured", "tables/measured-cost-scenes_c-scenes_vit-*.csv"),
    "scenes/settings.csv": ("scenes_when", "tables/scenes_c-scenes_vit-settings.csv"),
    "scenes/when.png": ("scenes_when", "figures/by-setting-1.png"),
    "scenes/rounds.csv": ("scenes_rounds", "tables/*scenes_vit-????????-rounds.csv"),
    "scenes/recurring.csv": ("scenes_recurring", "tables/scenes_c-scenes_vit-settings.csv"),
    "scenes/recurring.png": ("scenes_recurring", "figures/scenes_c-continual-*-rounds.png"),
    "scenes/rates.csv": ("scenes_rates", "tables/*scenes_vit-????????-leaderboard.csv"),
    "scenes/batchnorm.csv": ("scenes_breakdowns", "tables/scenes_c-scenes_cnn-settings.csv"),
    "scenes/groupnorm.csv": ("scenes_breakdowns", "tables/scenes_c-scenes_cnn_gn-settings.csv"),
    "scenes/gains.png": ("scenes", "figures/*scenes_vit-*-means.png"),
    "scenes_cnn/tuned.csv": ("tune_scenes_c_scenes_cnn", "searched.csv"),
    "scenes_cnn/tuned_gn.csv": ("tune_scenes_c_scenes_cnn_gn", "searched.csv"),
    "scenes_cnn/batchnorm.csv": ("scenes_cnn", "tables/*scenes_cnn-????????-leaderboard.csv"),
    "scenes_cnn/groupnorm.csv": ("scenes_cnn", "tables/*scenes_cnn_gn-????????-leaderboard.csv"),
    "scenes_cnn/batchnorm_domains.csv": ("scenes_cnn", "tables/*scenes_cnn-????????.csv"),
    "scenes_cnn/groupnorm_domains.csv": ("scenes_cnn", "tables/*scenes_cnn_gn-????????.csv"),
    "scenes_cnn/cost.csv": (
        "scenes_cnn_measured",
        "tables/measured-cost-scenes_c-scenes_cnn-*.csv",
    ),
    "scenes_cnn/cost_gn.csv": (
        "scenes_cnn_measured",
        "tables/measured-cost-scenes_c-scenes_cnn_gn-*.csv",
    ),
    "scenes_cnn/settings.csv": ("scenes_cnn_when", "tables/scenes_c-scenes_cnn-settings.csv"),
    "scenes_cnn/when.png": ("scenes_cnn_when", "figures/by-setting-1.png"),
    "scenes_cnn/settings_gn.csv": ("scenes_cnn_when", "tables/scenes_c-scenes_cnn_gn-settings.csv"),
    "scenes_cnn/when_gn.png": ("scenes_cnn_when", "figures/by-setting-2.png"),
    "scenes_cnn/rounds.csv": ("scenes_cnn_rounds", "tables/*scenes_cnn-????????-rounds.csv"),
    "scenes_cnn/rounds_gn.csv": ("scenes_cnn_rounds", "tables/*scenes_cnn_gn-????????-rounds.csv"),
    "scenes_orders/orders.csv": ("scenes_orders", "tables/scenes_c-*-orders.csv"),
    "scenes_orders/batchnorm.csv": (
        "scenes_cnn_orders",
        "tables/scenes_c-*-scenes_cnn-????????-orders.csv",
    ),
    "scenes_orders/groupnorm.csv": (
        "scenes_cnn_orders",
        "tables/scenes_c-*-scenes_cnn_gn-????????-orders.csv",
    ),
    "streets/leaderboard.csv": ("streets", "tables/streets_acdc-*-????????-leaderboard.csv"),
    "streets/main.csv": ("streets", "tables/streets_acdc-*-????????.csv"),
    "streets/rounds.csv": ("streets", "tables/streets_acdc-*-????????-rounds.csv"),
    "streets/holdout.csv": ("holdout_streets", "tables/streets_acdc-*-????????-rounds.csv"),
    "streets/cost.csv": ("streets", "tables/streets_acdc-*-cost.csv"),
}


def main() -> int:
    """Run, copy, and report what could not be copied; 1 if there is such a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", help="README, or pages of docs/results by name; all")
    parser.add_argument("--no-run", action="store_true", help="take the results of existing runs")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the folder of these runs")
    parser.add_argument("--demo", action="store_true", help="print the README's table alone")
    options = parser.parse_args()
    if options.demo:
        print(demo_table(options.runs / DEMO / "report"))
        return 0
    names = options.pages or [README.stem, *sorted(page.stem for page in RESULTS.glob("*.md"))]
    problems = []
    for name in names:
        if name == README.stem:
            problems += make_readme(options.runs, not options.no_run)
        else:
            problems += make_page(RESULTS / f"{name}.md", options.runs, not options.no_run)
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def make_page(page: Path, runs: Path, again: bool) -> list[str]:
    """Run the commands of a page (`again`), and copy its files; sentences on those it lacks."""
    problems = []
    if again:
        for line in commands(page.read_text("utf-8")):
            run(["sh", "-c", line])
    files = {file: place for file, place in FILES.items() if file.startswith(f"{page.stem}/")}
    for name in dict.fromkeys(name for name, *_ in files.values()):
        if (runs / name).is_dir() and not name.startswith(SEARCH):
            run(["ctta-bench", "report", str(runs / name)])
    for file, (name, pattern, *words) in files.items():
        place = runs / name if name.startswith(SEARCH) else runs / name / "report"
        problems += take(file, place, pattern, words)
    return problems


def make_readme(runs: Path, again: bool) -> list[str]:
    """Run the demo (`again`), and write its table into the README."""
    if again:
        run(["ctta-bench", "grid", DEMO])
    if not (runs / DEMO).is_dir():
        return [f"README: no folder {runs / DEMO}; its table is unchanged"]
    run(["ctta-bench", "report", str(runs / DEMO)])
    marked = re.compile(rf"(<!-- results: {DEMO} -->\n).*?(<!-- /results -->)", re.DOTALL)
    table = f"{demo_table(runs / DEMO / 'report')}\n"
    text = marked.sub(lambda found: found[1] + table + found[2], README.read_text("utf-8"))
    README.write_text(text, "utf-8")
    return []


def demo_table(report: Path) -> str:
    """The README's table: error, gain and its mark for each method, from the leaderboards."""
    tables = {head: _of_model(report / "tables", model) for head, model in DEMO_MODELS.items()}
    heads = [text for head in tables for text in (f"{head}: error %", "gain", "95 % interval")]
    methods = dict.fromkeys(label for rows in tables.values() for label in rows)
    lines = [["method", *heads], ["---", *["---:"] * len(heads)]]
    for label in methods:
        entries = (rows.get(label, [MISSING] * 3) for rows in tables.values())
        name = METHODS.display_name(label)
        lines.append([name, *(text for entry in entries for text in entry)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _of_model(tables: Path, model: str) -> dict[str, list[str]]:
    """The entries of each method on one model, from the best to the worst."""
    (file,) = tables.glob(f"*{model}-????????-leaderboard.csv")
    found = {}
    for label, row in _rows(file).items():
        gain = interval = MISSING
        if row["gain"]:
            mark = BETTER if float(row["gain"]) > 0 else WORSE
            gain = signed(float(row["gain"])) + f" {mark}" * (float(row["p_holm"]) < LEVEL)
            interval = f"[{signed(float(row['low']))}, {signed(float(row['high']))}]"
        found[label] = [printed(float(row["mean"])), gain, interval]
    return found


def _rows(file: Path) -> dict[str, dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as table:
        return {row["method"]: row for row in csv.DictReader(table)}


def commands(text: str) -> list[str]:
    """The lines of a page's sh blocks that call ctta-bench, each once, without comments."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    plain = [" ".join(line.partition("#")[0].split()) for line in lines]
    return [line for line in dict.fromkeys(plain) if re.match(r"(\w+=\S+ )*ctta-bench ", line)]


def run(command: list[str]) -> None:
    """Run one command with the ctta-bench of this Python; raises CalledProcessError if it fails."""
    print("+", command[-1] if command[0] == "sh" else " ".join(command), flush=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(command, check=True, env=os.environ | {"PATH": path})


def take(file: str, report: Path, pattern: str, words: list[str]) -> list[str]:
    """Copy the matching file of a report; returns a message if not exactly one file matches."""
    found = [path for path in sorted(report.glob(pattern)) if _says(path, words)]
    if len(found) != 1:
        return [f"{file}: {len(found)} files match {report / pattern}; it was not changed"]
    shutil.copyfile(found[0], RESULTS / file)
    table = found[0].with_suffix(".md")
    if table.is_file():
        page = RESULTS / f"{file.partition('/')[0]}.md"
        page.write_text(reprinted(page.read_text("utf-8"), file, table.read_text("utf-8")), "utf-8")
    return []


def _says(path: Path, words: list[str]) -> bool:
    """Whether the table that a file belongs to has these words in its caption."""
    return not words or all(w in path.with_suffix(".md").read_text("utf-8") for w in words)


def reprinted(page: str, file: str, table: str) -> str:
    """The page with new values in the table marked as `file`, in the columns of the page."""
    marked = re.compile(
        rf"(<!-- table: {re.escape(file)} -->\n\n?)(.*?)(\n<!-- /table -->)", re.DOTALL
    )
    block = marked.search(page)
    if block is None:
        return page
    rows = [_cells(line) for line in table.splitlines() if line.startswith("|")]
    head = _cells(block[2].splitlines()[0])
    columns = [_place(name, rows[0]) for name in head]
    rows[0] = [head[columns.index(k)] if k in columns else name for k, name in enumerate(rows[0])]
    lines = ["| " + " | ".join(row[k] for k in columns) + " |" for row in rows]
    return page[: block.start(2)] + "\n".join(lines) + page[block.end(2) :]


def _place(name: str, head: list[str]) -> int:
    """Position of a column; tables by round and domain call that of a round `round 1 mean`."""
    names = (name, f"{name} mean", f"all rounds {name}")
    return next(head.index(option) for option in names if option in head)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


if __name__ == "__main__":
    sys.exit(main())
