"""`leaderboard`, `diff` and `protocol check`: rankings, differences and rules of bundles."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.sharing.bundle import draft_bundle
from ctta_bench.analysis.sharing.diff import diff
from ctta_bench.analysis.sharing.leaderboard import boards
from ctta_bench.analysis.sharing.protocol import check_protocol, read_protocol, shipped
from ctta_bench.analysis.sharing.site import write_site
from ctta_bench.analysis.tables.leaderboard import leaderboard
from ctta_bench.cli import app
from ctta_bench.errors import ConfigError, RunError
from ctta_bench.record.arrays import read_all_arrays
from ctta_bench.record.bundle import Bundle, write_bundle
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.schema import cell_id

STORED = Path(__file__).parent / "stored" / "first"


def bundled(runs, name="runs.zip", **about):
    draft, file = draft_bundle(runs, about=about), runs.parent / name
    write_bundle(file, draft.contents, draft.about)
    return file


def changed(runs, target, change, method="tent"):
    """A copy of runs in which the record of a cell was changed, with the name that follows."""
    copy = Path(shutil.copytree(runs, target))
    for folder in [*copy.glob(f"{method}*")]:
        record = yaml.safe_load((folder / "cell.yaml").read_text())
        env = json.loads((folder / "env.json").read_text())
        change(record, env)
        record["id"] = cell_id(record)
        result = json.loads((folder / "result.json").read_text()) | {"cell": record["id"]}
        (folder / "cell.yaml").write_text(yaml.safe_dump(record, sort_keys=False))
        (folder / "env.json").write_text(json.dumps(env))
        (folder / "result.json").write_text(json.dumps(result))
        folder.rename(folder.with_name(record["id"]))
    return copy


@pytest.fixture
def runs(tmp_path):
    return Path(shutil.copytree(STORED, tmp_path / "first"))


# -- leaderboard


@pytest.fixture
def site(runs, tmp_path):
    mine = bundled(runs, "mine.zip", title="Mine", contact="me")

    def bigger(record, env):
        record["benchmark"]["batch_size"] = 10
        env["time"] = "2026-12-01T00:00:00Z"

    theirs = changed(runs, tmp_path / "theirs", bigger, method="")
    write_site([mine, bundled(theirs, "theirs.zip", title="<b>Theirs</b>")], tmp_path / "site")
    return tmp_path / "site"


def test_numbers_of_the_site_are_those_of_the_report(site, runs):
    frame = leaderboard(load(runs)).frame
    found = json.loads((site / "leaderboard.json").read_text())["protocols"]
    (board,) = (b for b in found if b["facts"]["batch size"] == "5")
    entries = {entry["method"]: entry for entry in board["entries"]}
    assert entries.keys() == set(frame.index) == {"source", "tent"}
    for name, entry in entries.items():
        for column in ("mean", "half_interval", "gain", "low", "high", "time"):
            value = frame.loc[name, column]
            assert entry["values"][column] == (None if np.isnan(value) else value)
        assert entry["domains"] == {d: frame.loc[name, d] for d in ("clean", "dark", "noise")}
    page = (site / "protocols" / f"{board['key']}.html").read_text()
    assert f"{frame.loc['tent', 'mean']:.1f}" in page


def test_protocols_are_never_mixed_and_every_link_leads_somewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len([*(site / "protocols").glob("*.html")]) == 2
    assert len([*(site / "entries").glob("*.html")]) == 4
    for page in pages:
        text = page.read_text("utf-8")
        assert "<b>Theirs" not in text
        links = re.findall(r'(?:href|src)="([^"]+)"', text)
        assert links
        for link in links:
            assert link.startswith("https://") or (page.parent / link).resolve().exists(), link
        assert page.with_suffix(".json").exists() or page.name == "index.html"
    for badge in (site / "badges").iterdir():
        assert ElementTree.parse(badge).getroot().get("aria-label").startswith("ctta-bench: ")
    assert Bundle.read(next((site / "bundles").glob("mine-*.zip"))).findings == []


def test_the_depth_of_a_verification_is_shown_if_it_is_of_this_bundle(runs):
    file = bundled(runs)
    content = Bundle.read(file).manifest["content_sha256"]
    saved = file.with_suffix(".verified.json")
    for stated, depth in ((content, "replay"), ("0" * 64, "recount")):
        saved.write_text(json.dumps({"content_sha256": stated, "depth": "replay", "holds": True}))
        (board,) = boards([file])
        assert {entry.source.depth for entry in board.entries} == {depth}
    saved.write_text("[]")
    with pytest.raises(RunError, match="is no result of"):
        boards([file])


def test_a_newer_bundle_of_one_contact_replaces_an_older_one(runs, tmp_path):
    old = bundled(runs, "old.zip", contact="me")
    newer = changed(
        runs, tmp_path / "newer", lambda r, env: env.update(time="2027-01-01T00:00:00Z"), ""
    )
    (board,) = boards([old, bundled(newer, "new.zip", contact="me")])
    assert {entry.date for entry in board.entries} == {"2027-01-01"}
    assert {entry.date for entry in board.earlier} == {"2026-11-28"}
    (board,) = boards([old, bundled(newer, "other.zip", contact="you")])
    assert len(board.entries) == 4 and not board.earlier
    assert [rank for _, table in board.tables() for rank, _ in table] == [None, None, 1, 1]


def test_a_bundle_that_does_not_hold_is_not_ranked(runs):
    file = bundled(runs)
    stored = Bundle.read(file)
    place, cell = next((p, c) for p, c in stored.cells().items() if p.startswith("tent"))
    cell["result"]["mean"] = 1.0
    from ctta_bench.record.bundle import Contents

    contents = Contents(dict(stored.members))
    contents.add_json(f"runs/{place}/cell.json", cell)
    write_bundle(file, contents, {"cells": stored.manifest["cells"]})
    with pytest.raises(RunError, match="do not hold"):
        boards([file])
    with pytest.raises(RunError, match="has the content of"):
        whole = bundled(runs, "whole.zip")
        boards([whole, Path(shutil.copy(whole, runs.parent / "copy.zip"))])


def test_the_command_writes_a_site_and_replaces_only_its_own(runs, tmp_path):
    run, file = CliRunner().invoke, bundled(runs)
    for _ in range(2):
        done = run(app, ["leaderboard", str(file), "-o", str(tmp_path / "site")])
        assert done.exit_code == 0, done.output
    assert "2 entries" in done.output
    refused = run(app, ["leaderboard", str(file), "-o", str(runs)])
    assert refused.exit_code == 2 and "is no leaderboard" in refused.output


# -- diff


def test_equal_bundles_have_no_difference(runs):
    first, second = bundled(runs, "a.zip"), bundled(runs, "b.zip")
    assert {one.verdict for one in diff(first, second)} == {"the same predictions"}
    done = CliRunner().invoke(app, ["diff", str(first), str(runs)])
    assert done.exit_code == 0 and "2 cells, 2 with the same predictions" in done.output


def test_other_values_and_predictions_are_named_with_the_difference(runs, tmp_path):
    def change(record, env):
        record["method"]["hyperparameters"]["lr"] = 0.5
        env["torch"] = "9.9"

    other = changed(runs, tmp_path / "other", change)
    (folder,) = other.glob("tent-*")
    arrays = {k: v.copy() for k, v in read_all_arrays(folder, "predictions.npz").items()}
    wrong = np.flatnonzero(arrays["prediction"] != arrays["label"])[:3]
    arrays["prediction"][wrong] = arrays["label"][wrong]
    RunFolder(folder).write_arrays("predictions.npz", arrays)
    result = json.loads((folder / "result.json").read_text())
    result["mean"] -= 10
    (folder / "result.json").write_text(json.dumps(result))
    source, tent = diff(runs, other)
    assert source.verdict == "the same predictions"
    assert tent.difference == pytest.approx(-10) and tent.equal == pytest.approx(0.9)
    assert tent.half_interval > 0 and tent.verdict.startswith("differs ")
    assert tent.reasons[0] == "method.hyperparameters.lr: 0.001 in A, 0.5 in B"
    assert tent.reasons[1] == "torch: 2.14.1+cu130 in A, 9.9 in B"
    done = CliRunner().invoke(app, ["diff", str(runs), str(other)])
    assert done.exit_code == 1 and "equal predictions: 90.00 %" in done.output


def test_cells_of_one_side_are_named(runs, tmp_path):
    fewer = Path(shutil.copytree(runs, tmp_path / "fewer"))
    for folder in fewer.glob("tent-*"):
        shutil.rmtree(folder)
    assert [one.verdict for one in diff(runs, fewer)] == ["the same predictions", "only in A"]
    assert [one.verdict for one in diff(fewer, runs)][-1] == "only in B"


# -- protocols


def test_the_shipped_protocols_are_read_and_hashed():
    assert [*shipped()] == ["fair-v1", "lineage-v1"]
    fair, lineage = map(read_protocol, shipped())
    assert fair.rows.seeds == 3 and fair.rows.orders == 5 and fair.cells.batch_sizes == [64, 1]
    assert lineage.cells.normalisation == ["lineage"]
    assert len({fair.sha256, lineage.sha256}) == 2
    assert read_protocol(str(shipped()["fair-v1"])).sha256 == fair.sha256


def test_a_row_is_told_every_rule_that_it_breaks(runs):
    source, tent = check_protocol(runs, read_protocol("fair-v1"))
    assert (source.method, tent.method) == ("Source", "TENT")
    assert not source.qualifies
    assert set(tent.reasons) == {
        "no search of its values is recorded",
        "batch size 5 is not 64 or 1",
        "source data not recorded is not none or unlabelled or labelled",
        "10 images per domain, fewer than 500",
        "no cell that keeps the rules with batch size 64",
        "no cell that keeps the rules with batch size 1",
    }


def test_seeds_orders_and_searches_are_counted(runs, tmp_path):
    rules = {
        "name": "own",
        "version": 1,
        "title": "My rules",
        "cells": {"batch_sizes": [5], "tuning": "hold-out", "most_trials": 16, "images": 10},
        "rows": {"seeds": 2, "orders": 2, "batch_sizes": [5]},
    }
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(rules))
    own = read_protocol(str(file))
    search = {"command": "tune", "trials": 16, "domains": ["grey"]}
    search["images"] = "others than the scored ones"
    together = tmp_path / "together"
    together.mkdir()
    for seed, order in ((0, None), (1, "rotta")):

        def change(record, env, seed=seed, order=order):
            record |= {"seed": seed, "tuned": search}
            record["benchmark"] |= {"domain_order": order} if order else {}

        copy = changed(runs, tmp_path / f"seed{seed}", change)
        shutil.move(next(copy.glob("tent-*")), together)
    (tent,) = check_protocol(together, own)
    assert tent.qualifies and tent.cells == 2
    search["images"] = "the scored ones"
    copy = changed(together, tmp_path / "scored", lambda r, e: r.update(tuned=dict(search)))
    (tent,) = check_protocol(copy, own)
    assert "its values were searched on images that the table scores" in tent.reasons
    one = read_protocol(str(file)).model_copy(
        update={"rows": own.rows.model_copy(update={"seeds": 3, "orders": 3})}
    )
    (tent,) = check_protocol(together, one)
    assert tent.reasons == (
        "2 seeds of 3 with batch size 5",
        "2 orders of the domains of 3 with batch size 5",
    )


def test_the_command_prints_rows_and_wrong_files_are_one_sentence(runs, tmp_path):
    run = CliRunner().invoke
    done = run(app, ["protocol", "check", str(runs), "lineage-v1"])
    assert done.exit_code == 1
    assert "normalisation true is not lineage" in done.output
    assert "0 of 2 rows qualify for lineage-v1" in done.output
    with pytest.raises(ConfigError, match="did you mean 'fair-v1'"):
        read_protocol("fair-1")
    (tmp_path / "x.yaml").write_text("name: x\nversion: 1\ntitle: x\ncells: {seed: 1}\n")
    with pytest.raises(ConfigError, match=r"cells\.seed"):
        read_protocol(str(tmp_path / "x.yaml"))
