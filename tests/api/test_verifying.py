"""`ctta-bench verify`: each way to make numbers look better is found, and has its name."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.analysis.sharing.bundle import draft_bundle
from ctta_bench.api.verifying import verify
from ctta_bench.cli import app
from ctta_bench.config.cell import resolve
from ctta_bench.config.request import CellRequest
from ctta_bench.errors import ConfigError
from ctta_bench.record.archive import read_archive, write_archive
from ctta_bench.record.arrays import read_all_arrays
from ctta_bench.record.bundle import MANIFEST, Bundle, Contents, runs_folder, write_bundle
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.read import arrays_sha256
from ctta_bench.record.schema import cell_id
from ctta_bench.registry import METRICS
from ctta_bench.run.engine import run_cell
from ctta_bench.run.recorded import claims
from ctta_bench.stream.orders import Order
from tests.conftest import TOY

SMALL = {"benchmark.examples": 12}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bundle of two cells of the toy benchmark, as the engine left them."""
    from ctta_bench.registry import load_plugin

    load_plugin(str(TOY))
    runs = tmp_path_factory.mktemp("made") / "runs"
    for method in ("source", "tent"):
        cell = resolve(CellRequest(method=method, benchmark="toy", set=SMALL))
        run_cell(cell, RunFolder(runs / cell.id))
    return bundled(runs)


@pytest.fixture
def file(made, toy, tmp_path):
    return Path(shutil.copy(made, tmp_path / "runs.zip"))


def bundled(runs):
    draft = draft_bundle(runs)
    write_bundle(runs.with_suffix(".zip"), draft.contents, draft.about)
    return runs.with_suffix(".zip")


def forged(file, change, method="tent"):
    """A bundle in which a cell was changed, and everything that follows from it was made to fit."""
    runs = Path(shutil.copytree(runs_folder(file), file.parent / "forged"))
    (folder,) = runs.glob(f"{method}-*")
    record = yaml.safe_load((folder / "cell.yaml").read_text())
    arrays = {k: v.copy() for k, v in read_all_arrays(folder, "predictions.npz").items()}
    lines = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    arrays = change(record, arrays, result) or arrays
    metric = METRICS.get("classification")()
    rounds = metric.rounds_of(arrays, record["benchmark"]["domains"])
    size = record["benchmark"]["batch_size"]
    starts = np.concatenate(
        [np.flatnonzero(arrays["domain"] == d)[::size] for d in np.unique(arrays["domain"])]
    )
    cuts = np.append(starts, len(arrays["domain"]))
    lines = [
        {**line, "batch": b, "n": int(stop - start), "domain": record["benchmark"]["domains"][d]}
        | {"errors": int((arrays["prediction"] != arrays["label"])[start:stop].sum())}
        for b, (line, start, stop) in enumerate(zip(lines, cuts[:-1], cuts[1:], strict=False))
        for d in [int(arrays["domain"][start])]
    ]
    order = Order(
        arrays["domain"], arrays["index"], arrays["round"], cuts, np.zeros(len(starts) * size)
    )
    record |= {"id": cell_id(record), "num_batches": len(lines)}
    result |= {
        "cell": record["id"],
        "rounds": rounds,
        "mean": rounds[0]["mean"],
        "predictions_sha256": arrays_sha256(arrays),
        "order_sha256": order.sha256(),
    }
    RunFolder(folder).write_arrays("predictions.npz", arrays)
    (folder / "cell.yaml").write_text(yaml.safe_dump(record, sort_keys=False))
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "batches.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    folder.rename(folder.with_name(record["id"]))
    return bundled(runs)


def kinds(found):
    return {finding.kind for _, finding in found.findings}


def test_what_the_engine_made_holds_in_every_depth(file):
    for depth in ("recount", "replay", "full"):
        found = verify(file, depth, batches=2)
        assert found.findings == [] and found.notes == []
        assert found.numbers > 20
    assert {done.cell.partition("-")[0] for done in found.replayed} == {"source", "tent"}
    assert all(done.exact and done.same == 1 and done.images == 36 for done in found.replayed)


def test_a_forged_prediction_that_fits_its_result_is_found_by_replay(file):
    def change(record, arrays, result):
        wrong = np.flatnonzero(arrays["prediction"] != arrays["label"])[0]
        arrays["prediction"][wrong] = arrays["label"][wrong]

    bundle = forged(file, change)
    assert verify(bundle).findings == []
    found = verify(bundle, "full")
    assert kinds(found) == {"prediction"}
    ((cell, finding),) = found.findings
    assert cell.startswith("tent-") and finding.text.startswith("1 of 36 predictions differ")


def test_a_forged_prediction_alone_is_found_by_recount(file):
    members = read_archive(file)
    stored = Bundle.read(file)
    cell = next(c for p, c in stored.cells().items() if p.startswith("tent"))
    name = f"columns/{cell['arrays']['prediction']['column']}.npy"
    contents = Contents({k: v for k, v in members.items() if k != MANIFEST})
    head, values = members[name][:-36], bytearray(members[name][-36:])
    values[next(n for n, value in enumerate(values) if value)] = 0
    contents.members[name] = head + bytes(values)
    write_bundle(file, contents, {"cells": stored.manifest["cells"]})
    found = verify(file)
    assert "numbers" in kinds(found)
    assert any(cell.startswith("tent-") for cell, _ in found.findings)


def test_a_member_that_the_manifest_does_not_state_is_found(file):
    members = read_archive(file)
    members["runs/note.txt"] = b"."
    write_archive(file, members)
    assert kinds(verify(file)) == {"changed"}


def test_swapped_labels_are_found(file):
    def change(record, arrays, result):
        labels = arrays["label"]
        other = int(np.flatnonzero(labels[:12] != labels[0])[0])
        labels[[0, other]] = labels[[other, 0]]

    found = verify(forged(file, change))
    assert kinds(found) == {"numbers", "labels"} or kinds(found) == {"labels"}
    assert any("2 labels of clean are not the benchmark's" in f.text for _, f in found.findings)


def test_images_in_another_order_are_found(file):
    def change(record, arrays, result):
        for values in arrays.values():
            values[[0, 1]] = values[[1, 0]]

    assert "order" in kinds(verify(forged(file, change)))


def test_a_subset_passed_for_the_whole_is_found(file):
    def change(record, arrays, result):
        kept = arrays["index"] < 8  # of 12
        return {name: values[kept] for name, values in arrays.items()}

    found = verify(forged(file, change))
    assert "subset" in kinds(found)
    assert any("has 24 of the 36 images" in finding.text for _, finding in found.findings)


def test_other_values_under_the_name_of_a_preset_are_found(file):
    found = verify(forged(file, lambda r, a, s: r["method"].update(preset="paper")))
    assert "preset" in kinds(found)


def test_values_of_another_preset_and_an_unstated_search_are_found():
    cell = resolve(
        CellRequest(method="tent", benchmark="scenes_c", preset="published", set={"lr": 0.5})
    )
    result = {"source_access": "none"}
    ((kind, text),) = claims(cell.record, result)
    assert kind == "preset" and "lr 0.5 in place of" in text
    tuned = resolve(CellRequest(method="tent", benchmark="scenes_c"))
    assert tuned.tuned
    assert [*claims({**tuned.record, "tuned": dict(tuned.tuned)}, result)] == []
    ((kind, text),) = claims(tuned.record, result)
    assert kind == "tuned" and "does not state it" in text
    sold = {**tuned.record, "tuned": dict(tuned.tuned)}
    sold["method"] = sold["method"] | {"preset": "published"}
    assert {found.kind for found in claims(sold, result)} == {"preset", "tuned"}


def test_a_warm_up_that_is_not_stated_is_found():
    cell = resolve(CellRequest(method="vida", benchmark="fashion_c", set={"warmup_epochs": 1}))
    result = {"source_access": cell.method_class.source_access}
    honest = dict(cell.record) | ({"tuned": dict(cell.tuned)} if cell.tuned else {})
    assert [*claims(honest, result)] == []
    silent = {key: value for key, value in honest.items() if key != "warmup"}
    assert [found.kind for found in claims(silent, result)] == ["warm-up"]
    other = honest | {"warmup": "warmup-vida-fashion_c-seed0-00000000"}
    assert [found.kind for found in claims(other, result)] == ["warm-up"]


def test_source_data_that_are_not_stated_are_found(file):
    found = verify(forged(file, lambda r, a, s: s.update(source_access="labelled")))
    assert kinds(found) == {"source data"}


def test_an_edited_plug_in_is_found_and_nothing_is_run_without_the_option(file, tmp_path):
    members = read_archive(file)
    assert "code/toy.py" in members
    mark = tmp_path / "it-ran"
    contents = Contents({k: v for k, v in members.items() if k != MANIFEST})
    contents.members["code/toy.py"] += f"open({str(mark)!r}, 'w')\n".encode()
    write_bundle(file, contents, {"cells": Bundle.read(file).manifest["cells"]})
    found = verify(file)
    assert kinds(found) == {"plug-in"}
    assert not mark.exists()


@pytest.mark.slow
def test_a_plug_in_is_run_where_it_is_asked_for(made, command, tmp_path):
    unknown = command("verify", made)
    assert unknown.returncode == 0 and "its values are not compared" in unknown.stderr
    done = command("verify", made, "--run-code", "--depth", "replay", "--batches", "1", "--save")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("100.00 % equal predictions (compared bit by bit)") == 2
    saved = json.loads(made.with_suffix(".verified.json").read_text())
    assert (saved["depth"], saved["holds"]) == ("replay", True)
    assert saved["content_sha256"] == Bundle.read(made).manifest["content_sha256"]


def test_on_another_kind_of_device_accuracy_is_compared_within_the_tolerance(file):
    def change(record, arrays, result):
        wrong = np.flatnonzero(arrays["prediction"] != arrays["label"])[:3]
        arrays["prediction"][wrong] = arrays["label"][wrong]

    runs = Path(shutil.copytree(runs_folder(forged(file, change)), file.parent / "elsewhere"))
    for folder in runs.iterdir():
        env = json.loads((folder / "env.json").read_text()) | {"device": "NVIDIA H100"}
        del env["cpu"]  # as before runs recorded it
        (folder / "env.json").write_text(json.dumps(env))
    bundle = bundled(runs)
    found = verify(bundle, "full")
    assert kinds(found) == {"prediction"}
    assert "tolerance 0.5 points" in found.findings[0][1].text
    assert all("another device" in n and "cpu not recorded" in n for n in found.notes)
    lenient = verify(bundle, "full", tolerance=10)
    assert lenient.findings == [] and not any(done.exact for done in lenient.replayed)


def test_without_the_benchmark_its_recorded_labels_and_counts_are_compared(file, monkeypatch):
    from ctta_bench.registry import BENCHMARKS

    def change(record, arrays, result):
        arrays["label"][0] = (arrays["label"][0] + 1) % 10

    monkeypatch.setattr(BENCHMARKS.get("toy"), "problems", lambda self: ["no data."])
    found = verify(file)
    assert found.findings == [] and "are not here" in found.notes[0]
    assert "labels" in kinds(verify(forged(file, change)))


def test_the_command_names_findings_and_exits_with_1(file):
    run = CliRunner().invoke
    whole = run(app, ["verify", str(file)])
    assert whole.exit_code == 0 and whole.stdout.endswith("verified at depth recount: all hold\n")
    bundle = forged(file, lambda r, a, s: s.update(source_access="labelled"))
    found = run(app, ["verify", str(bundle), "--format", "json"])
    assert found.exit_code == 1
    assert json.loads(found.stdout)["findings"][0]["kind"] == "source data"
    wrong = run(app, ["verify", str(file), "--depth", "deep"])
    assert wrong.exit_code == 2 and "choose recount, replay or full" in wrong.output
    with pytest.raises(ConfigError, match="no such cell"):
        verify(file, "replay", cells=["cotta"])


def test_the_cells_of_a_replay_follow_from_the_content(file):
    content = str(Bundle.read(file).manifest["content_sha256"])
    assert len(content) == len(hashlib.sha256().hexdigest())
    first, second = (verify(file, "replay", batches=1).replayed for _ in range(2))
    assert [done.cell for done in first] == [done.cell for done in second]
