"""A result as frames, pictures, words and a folder; several of them in a table and on a page."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctta_bench
from ctta_bench.api import Result
from ctta_bench.errors import ConfigError, DataError, MethodError, RunError
from ctta_bench.method import Method
from ctta_bench.registry import METHODS, load_plugin
from ctta_bench.run.loggers import Logger
from tests import toy_maps
from tests.conftest import TOY

toy: Any = load_plugin(str(TOY))


def run(method: Any = "source", **more: Any) -> Result:
    return ctta_bench.evaluate(method, "toy", **({"examples": 24} | more))


@pytest.fixture(scope="module")
def pair() -> tuple[Result, Result]:
    load_plugin(str(TOY))
    return run(), run("tent", lr=0.01)


def test_a_result_in_words_and_frames(pair: tuple[Result, Result]) -> None:
    _, tent = pair
    assert len(repr(tent).splitlines()) <= 10 and "TENT on toy" in repr(tent)
    assert re.search(r"mean error: \d+\.\d ± \d+\.\d % \(95 % interval", tent.summary())
    frame = tent.to_frame()
    assert frame["domain"].tolist() == ["clean", "dark", "noise"]
    assert frame["error"].mean() == pytest.approx(tent.error) == 100 - tent.accuracy
    images = tent.predictions
    assert len(images) == 72 and images["correct"].mean() == pytest.approx(tent.accuracy / 100)
    assert set(images["domain"]) == set(tent.by_domain)
    assert tent.batches["n"].sum() == 72
    assert tent.interval.low < tent.error < tent.interval.high
    assert "<table" in tent._repr_html_()
    assert (tent.method, tent.benchmark, tent.model, tent.seed) == ("tent", "toy", "toy_vit", 0)


def test_a_picture_is_shown_and_saved(pair: tuple[Result, Result], tmp_path: Path) -> None:
    picture = pair[1].plot()
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert picture.save(tmp_path / "stream.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ConfigError, match=r"choose one of \.csv, \.pdf, \.png"):
        picture.save("stream.doc")
    with pytest.raises(ConfigError, match="unknown figure 'streams', did you mean 'stream'"):
        pair[1].plot("streams")


def test_a_result_is_saved_and_read_again(pair: tuple[Result, Result], tmp_path: Path) -> None:
    path = pair[0].save(tmp_path)
    again = Result.load(tmp_path)
    assert again.files == pair[0].files and again.error == pair[0].error
    assert np.array_equal(again.scores.prediction, pair[0].scores.prediction)  # type: ignore[union-attr]
    with pytest.raises(RunError, match="exists; give another folder, or force=True"):
        pair[0].save(tmp_path)
    assert pair[0].save(tmp_path, force=True) == path
    pair[1].save(tmp_path)
    assert [found.method for found in ctta_bench.load_results(tmp_path)] == ["source", "tent"]
    with pytest.raises(RunError, match="has 2 finished cells; name the folder of one"):
        Result.load(tmp_path)
    with pytest.raises(RunError, match="has 0 finished cells"):
        Result.load(tmp_path / "nowhere")


def test_results_next_to_each_other_are_the_report_s_tables(pair: tuple[Result, Result]) -> None:
    both = ctta_bench.compare(*pair)
    assert sorted(both.to_frame().index) == ["source", "tent"]
    assert both.to_frame().loc["tent", "mean"] == pytest.approx(pair[1].error)
    assert both.sentence in repr(both) and "gain (95 % interval)" in repr(both)
    assert r"\toprule" in both.to_latex() and "| TENT |" in both.to_markdown()
    assert "<table>" in both._repr_html_()
    assert both.plot()._repr_png_()
    assert len(ctta_bench.compare(pair[0]).to_frame()) == 1


def test_results_of_other_protocols_share_no_table(pair: tuple[Result, Result]) -> None:
    other = run(batch_size=5)
    with pytest.raises(ConfigError, match=r"differ in benchmark or stream \(batch_size: 8 and 5\)"):
        ctta_bench.compare(pair[0], other)
    with pytest.raises(ConfigError, match="there are no results"):
        ctta_bench.compare()
    with pytest.raises(ConfigError, match="int is no result"):
        ctta_bench.compare([3])  # type: ignore[list-item]


def test_the_page_of_results_in_memory(pair: tuple[Result, Result], tmp_path: Path) -> None:
    page = ctta_bench.report([*pair], tmp_path / "page")
    assert page.name == "index.html" and "TENT" in page.read_text("utf-8")


def test_names_give_the_cell_of_the_command_line(tmp_path: Path) -> None:
    from ctta_bench.config.cell import CellRequest, resolve

    found = run("tent", lr=0.01, out=tmp_path)
    asked = CellRequest(method="tent", benchmark="toy", set={"lr": 0.01, "examples": 24})
    assert found.name == resolve(asked).id
    assert (tmp_path / found.name / "result.json").is_file()


def test_names_objects_and_built_methods_agree_bit_identically() -> None:
    benchmark = ctta_bench.load_benchmark("toy", examples=24)
    named = run("tent", lr=0.01)
    model = ctta_bench.load_model("toy_vit")
    found = [
        ctta_bench.evaluate("tent", benchmark, lr=0.01),
        ctta_bench.evaluate(METHODS.get("tent"), benchmark, lr=0.01, model=model),
        ctta_bench.evaluate("tent", "toy", model=model, lr=0.01, examples=24),
        ctta_bench.evaluate(ctta_bench.load_method("tent", model, lr=0.01), benchmark),
    ]
    for other in found:
        assert np.array_equal(other.scores.nll, named.scores.nll)  # type: ignore[union-attr]
        assert other.cell["model"]["sha256"] == named.cell["model"]["sha256"]
    assert found[0].name == named.name


@pytest.mark.parametrize(
    "model", [pytest.param("scenes_vit", marks=pytest.mark.slow), "scenes_cnn"]
)
def test_an_object_takes_the_preset_of_its_benchmark_for_the_given_model(model: str) -> None:
    from ctta_bench.config.presets import preset_values

    settings: dict[str, Any] = {"domains": ["clean"], "examples": 4, "batch_size": 4}
    expected = preset_values("tent", "default", "scenes_c", model)
    assert expected["lr"] != preset_values("tent", "default", "any")["lr"]
    named = ctta_bench.evaluate("tent", "scenes_c", model=model, **settings)
    benchmark = ctta_bench.load_benchmark("scenes_c", **settings)
    for found in (
        ctta_bench.evaluate("tent", benchmark, model=model),
        ctta_bench.evaluate("tent", "scenes_c", model=ctta_bench.load_model(model), **settings),
    ):
        assert found.name == named.name and found.hyperparameters["lr"] == expected["lr"]
        assert found.record["notes"] == named.record["notes"]
    built = ctta_bench.load_method("tent", ctta_bench.load_model(model), benchmark="scenes_c")
    assert built.hp.lr == expected["lr"]


def test_a_model_without_a_preset_of_its_own_is_noted() -> None:
    network = toy.toy_vit()
    settings: dict[str, Any] = {"domains": ["clean"], "examples": 4, "near_chance": "accept"}
    found = ctta_bench.evaluate("cmf", "scenes_c", model=network, **settings)
    assert "no preset for VisionTransformer, using default of scenes_c (made for scenes_vit)" in (
        " ".join(found.record["notes"])
    )
    own = ctta_bench.evaluate("cmf", toy.labelled(1, "toy_vit"), model=network)
    assert not any("preset" in note for note in own.record["notes"])


def test_a_class_of_a_notebook_needs_no_registration() -> None:
    class Half(Method):
        def adapt(self, images: Any) -> Any:
            return self.model(images / 2)

    found = run(Half)
    assert found.method == "half" and found.error > 0
    assert ctta_bench.compare(run(), found).to_frame().loc["half", "gain"] < 0


def test_a_method_runs_once_and_takes_its_values_when_it_is_built() -> None:
    method = ctta_bench.load_method("tent", ctta_bench.load_model("toy_vit"))
    with pytest.raises(ConfigError, match=r"lr: this method is built; .* load_method"):
        run(method, lr=0.1)
    with pytest.raises(ConfigError, match="unknown key 'lrr'"):
        run(method, lrr=0.1)
    with pytest.raises(ConfigError, match="built on its model already"):
        run(method, model="toy_cnn")
    run(method)
    with pytest.raises(ConfigError, match="TENT: has been run already; build it again"):
        run(method)


def test_callbacks_and_loggers_see_every_batch() -> None:
    seen: list[Any] = []
    ended: list[Any] = []

    class Ends(Logger):
        def finish(self, result: Any) -> None:
            ended.append(result)

    found = run(callbacks=[seen.append], loggers=[Ends()])
    assert [line["batch"] for line in seen] == [*range(9)]
    assert ended[0]["mean"] == found.error


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    run(progress=False)
    assert capsys.readouterr().err == ""
    run(progress=True)
    assert "source on toy" in capsys.readouterr().err.lower()


def test_a_model_near_chance_is_refused_or_accepted_with_a_note() -> None:
    images, labels = toy.labelled(2, "toy_vit")
    wrong = {"day": (images, labels)}
    benchmark = ctta_bench.Benchmark.from_domains(wrong, source=(images, (labels + 1) % 10))
    with pytest.raises(DataError, match=r"near chance .* accept"):
        ctta_bench.evaluate("source", benchmark, model=toy.toy_vit())
    found = ctta_bench.evaluate("source", benchmark, model=toy.toy_vit(), near_chance="accept")
    assert any("near chance" in note for note in found.record["notes"])
    assert "was accepted" in found.summary()


def test_a_grid_in_memory_and_in_a_folder(tmp_path: Path) -> None:
    more = {"examples": 16, "lr": 0.01, "domains": ["dark"]}
    found = ctta_bench.evaluate_many(["source", "tent"], "toy", seeds=[0, 1], **more)
    one = ctta_bench.evaluate_many("tent", "toy", models="toy_vit", seeds=1, **more)
    assert [result.name for result in one] == [found[3].name]
    assert found.to_frame()[["method", "seed"]].values.tolist() == [
        ["source", 0], ["source", 1], ["tent", 0], ["tent", 1],
    ]  # fmt: skip
    assert found[2].hyperparameters["lr"] == 0.01
    assert sorted(found.compare().to_frame().index) == ["source", "tent"]
    assert "4 results" in repr(found)
    same = ctta_bench.evaluate_many(
        {"source": {}, "tent": {"lr": 0.01}}, "toy", seeds=[0, 1], out=tmp_path, examples=16,
        domains=["dark"],
    )  # fmt: skip
    assert [one.name for one in same] == [one.name for one in found]
    assert len(ctta_bench.load_results(tmp_path)) == 4


def test_a_failed_cell_stops_no_other_and_processes_agree() -> None:
    days = {"day": toy.labelled(1, "toy_vit")}
    one, two = (
        ctta_bench.evaluate_many(["source", "rmt", "tent"], days, models=[toy.toy_vit()], jobs=jobs)
        for jobs in (1, 2)
    )
    assert [found.error for found in one] == [found.error for found in two]
    assert one.failures == two.failures and list(one.failures) == [
        "rmt on data, VisionTransformer, seed 0"
    ]
    assert "source=... of Benchmark.from_domains" in next(iter(one.failures.values()))
    assert "failed: rmt on data" in repr(one)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: run("tennt"), ConfigError, "did you mean 'tent'"),
        (lambda: run(lrr=1), ConfigError, "unknown key 'lrr'"),
        (lambda: run(keep_models="last"), ConfigError, "give out="),
        (lambda: run("dept", model=toy.toy_cnn()), MethodError, "DePT does not support Seq"),
        (
            lambda: ctta_bench.evaluate("source", toy.labelled(1, "toy_vit")),
            ConfigError,
            "data has no default model; give model=",
        ),
        (lambda: run(seed=-1), ConfigError, "seed"),
        (lambda: run(toy.toy_vit()), ConfigError, "is no method; give its name (list_methods())"),
        (lambda: run(model=3), ConfigError, "load_model: 3: give a name"),
        (
            lambda: ctta_bench.evaluate_many(toy.toy_vit(), ["toy"]),  # type: ignore[arg-type]
            ConfigError,
            "and a network as model=",
        ),
        (
            lambda: run(model=toy_maps.toy_segmentor()),
            DataError,
            "is for segmentation, but toy for classification",
        ),
        (lambda: ctta_bench.adapt("tent", "toy_vit"), ConfigError, "adapt(MODEL, METHOD)"),
    ],
)
def test_a_wrong_call_is_refused_in_a_sentence(call: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        call()
