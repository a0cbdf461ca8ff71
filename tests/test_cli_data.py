"""The commands `ctta-bench data ...` as a user types them, and the rehearsal of docs."""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.datasets.fetching import origins
from ctta_bench.datasets.rehearsal import benchmarks as rehearsal
from tests.datasets.local_server import Behaviour, local_server

Invoke = Callable[..., Result]
PAGE = Path(__file__).parent.parent / "docs" / "running-the-paper.md"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """`ctta-bench data ...` in an empty folder, with the data root DATA in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CTTA_BENCH_DATA", str(tmp_path / "DATA"))

    def invoke(*words: object) -> Result:
        return CliRunner().invoke(app, ["data", *map(str, words)])

    return invoke


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Behaviour]:
    """A host that has a tiny CIFAR-10-C.tar, and a table of origins that knows it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("fog", "labels"):
            info = tarfile.TarInfo(f"CIFAR-10-C/{name}.npy")
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    content = stream.getvalue()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with local_server() as behaviour:
        behaviour.files["CIFAR-10-C.tar"] = content
        true = origins.find_origin("cifar10_c")
        facts = {
            "url": f"{behaviour.url}/CIFAR-10-C.tar?download=1",
            "bytes": len(content),
            "md5": hashlib.md5(content).hexdigest(),
        }
        tiny = true.model_copy(
            update={
                "archives": (true.archives[0].model_copy(update=facts),),
                "md5": {"CIFAR-10-C/fog.npy": hashlib.md5(b"abc").hexdigest()},
            }
        )
        monkeypatch.setitem(origins.origins(), "cifar10_c", tiny)
        yield behaviour


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


def test_the_list_shows_how_to_get_each_set_and_which_are_there(data: Invoke) -> None:
    rows = {row["name"]: row for row in json.loads(data("list", "--format", "json").stdout)}
    assert rows["cifar10_c"]["how"] == "download, 2.9 GB"
    assert rows["imagenet_c"]["how"] == "download, 50.2 GB (+ extra)"
    assert rows["cityscapes_acdc"]["how"] == "by hand"
    assert rows["fashion_c"]["how"] == "in the package"
    assert {rows[name]["there"] for name in ("cifar10_c", "cityscapes_acdc")} == {"no"}
    assert "data root: " in data("list").stdout


def test_a_set_is_fetched_checked_and_unpacked_without_a_question(
    data: Invoke, server: Behaviour, tmp_path: Path
) -> None:
    result = data("download", "CIFAR10-C", "--root", tmp_path / "mine")
    assert result.exit_code == 0, result.output
    assert re.search(r"CIFAR-10-C\.tar from 127\.0\.0\.1:\d+: [\d,]+ bytes, md5 ", result.stdout)
    assert (tmp_path / "mine" / "CIFAR-10-C" / "fog.npy").read_bytes() == b"abc"
    again = data("download", "cifar10_c", "--root", tmp_path / "mine")
    assert "already there" in again.stdout
    assert len(server.requests) == 1
    assert data("verify", "cifar10_c", "--root", tmp_path / "mine").exit_code == 0


def test_a_web_page_in_place_of_the_set_ends_with_one_sentence(
    data: Invoke, server: Behaviour, tmp_path: Path
) -> None:
    server.files["CIFAR-10-C.tar"] = b"<html>quota</html>"
    server.content_type = "text/html"
    refused(data("download", "cifar10_c"), "text/html", server.url, "--mirror")
    assert not (tmp_path / "DATA" / "CIFAR-10-C").exists()


def test_a_folder_can_be_the_mirror(data: Invoke, server: Behaviour, tmp_path: Path) -> None:
    (tmp_path / "CIFAR-10-C.tar").write_bytes(server.files["CIFAR-10-C.tar"])
    result = data("download", "cifar10_c", "--mirror", tmp_path, "--quiet")
    assert (result.exit_code, result.stdout) == (0, "")
    assert server.requests == []


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (("download", "imagenet"), ("needs an account", "imagenet2012/{train,val}")),
        (("download", "cityscapes"), ("needs an account", "leftImg8bit")),
        (("download", "imagenet_c", "--part", "nois"), ("--part 'nois'", "noise, blur")),
        (("download", "cifar11_c"), ("Did you mean 'cifar10_c'",)),
        (("make",), ("either a benchmark or --layout",)),
        (("make", "cifar10_c", "--layout", "cifar10_c"), ("either a benchmark or --layout",)),
        (("make", "--layout", "cifar10_c", "--seed", "1"), ("takes only --data-root, --images",)),
        (("make", "cifar10_c", "--images", "3"), ("--images", "--layout")),
        (("make", "cifar10_c", "--workers", "0"), ("--workers 0",)),
        (("make", "cifar10_c", "--source", "nowhere"), ("nowhere", "no such file")),
        (("verify", "nothing"), ("no data is known for 'nothing'",)),
        (("verify", "cifar10_c"), ("missing",)),
    ],
)
def test_a_mistake_gets_one_sentence(
    words: tuple[str, ...], reasons: tuple[str, ...], data: Invoke
) -> None:
    refused(data(*words), *reasons)


def test_an_embedded_set_needs_no_fetching(data: Invoke) -> None:
    result = data("download", "fashion-c")
    assert (result.exit_code, "nothing to fetch" in result.stdout) == (0, True)


def test_a_set_is_made_of_a_users_array_and_proven(data: Invoke, tmp_path: Path) -> None:
    images = np.random.RandomState(0).randint(0, 255, (3, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(3))
    words = ("make", "cifar10_c", "--source", "mine.npz", "--corruption", "contrast")
    assert "made 1 file(s)" in data(*words).stdout
    assert "already complete" in data(*words).stdout
    found = json.loads(data("verify", "cifar10_c", "--format", "json").stdout)
    assert [(f["place"], f["verdict"]) for f in found[:2]] == [
        ("CIFAR-10-C/contrast.npy", "whole"),
        ("CIFAR-10-C/labels.npy", "whole"),
    ]
    refused(data(*words, "--seed", "1"), "other images, parameters or seed")


def commands(block: str) -> list[list[str]]:
    """The commands of a block of the page, without comments; a backslash continues a line."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [line.partition("#")[0].split() for line in lines if line.startswith("ctta-bench")]


def test_the_rehearsal_of_the_page_runs_and_its_results_say_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"<!-- rehearsal -->\n+```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    # Three corruptions and three images stand for the fifteen and ten: the same steps.
    monkeypatch.setattr(rehearsal, "MADE", ("fog", "contrast", "pixelate"))
    monkeypatch.setattr(rehearsal, "IMAGES", 3)
    calls = commands(block)
    assert [" ".join(call[1:3]) for call in calls[:3]] == ["data make", "data check", "data verify"]
    for call in calls:
        few = ["--set", "domains=[fog,contrast,pixelate]"] if call[1] in ("run", "grid") else []
        result = CliRunner().invoke(app, [*call[1:], *few])
        if call[1:3] == ["data", "check"]:
            continue  # it names the twelve corruptions that this test leaves out
        assert result.exit_code == 0, f"{call}: {result.output}"
    notes = [json.loads(f.read_text())["corruptions"] for f in Path("runs").rglob("env.json")]
    assert notes
    assert all("rehearsal" in note for note in notes)


def test_every_command_of_the_page_is_one() -> None:
    pages = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    called = [call for block in pages for call in commands(block)]
    assert len(called) >= 10
    for call in called:
        group = call[1:3] if call[1] in ("data", "models") else call[1:2]
        result = CliRunner().invoke(app, [*group, "--help"])
        assert result.exit_code == 0, call
        options = {word.partition("=")[0] for word in call if word.startswith("--")}
        assert [option for option in options if option not in result.output] == []
