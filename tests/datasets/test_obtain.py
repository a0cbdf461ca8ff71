"""From an archive on a server to whole folders in their places."""

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ctta_bench.datasets.fetching import obtain as module
from ctta_bench.datasets.fetching.obtain import missing, obtain
from ctta_bench.datasets.fetching.origins import Archive, by_hand_sentence, find_origin, origins
from ctta_bench.datasets.io.files import digest_of, locked
from ctta_bench.datasets.making.manifest import new_manifest, write_manifest
from ctta_bench.errors import ConfigError, DataError
from tests.datasets.local_server import Behaviour, local_server

FILES = {
    "fog/1/n01440764/a.JPEG": b"one",
    "fog/5/n01440764/a.JPEG": b"five",
    "snow/1/n15075141/b.JPEG": b"two",
}


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Behaviour]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with local_server() as behaviour:
        behaviour.files["weather.tar"] = packed(FILES)
        yield behaviour


@pytest.fixture
def weather(server: Behaviour) -> Archive:
    content = server.files["weather.tar"]
    return Archive(
        part="weather",
        file="weather.tar",
        url=f"{server.url}/weather.tar",
        bytes=len(content),
        md5=hashlib.md5(content).hexdigest(),
        into="ImageNet-C",
        provides=("fog", "snow"),
        group=2,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_folders_stand_in_their_places_and_the_archive_is_gone(
    weather: Archive, tmp_path: Path
) -> None:
    assert missing(weather, tmp_path) == ["fog", "snow"]
    assert obtain(weather, tmp_path)
    assert missing(weather, tmp_path) == []
    assert contents(tmp_path / "ImageNet-C") == FILES
    assert not (tmp_path / "downloads" / "weather.tar").exists()
    assert not obtain(weather, tmp_path)


def test_the_archive_is_kept_if_asked(weather: Archive, tmp_path: Path) -> None:
    obtain(weather, tmp_path, keep_archive=True)
    assert (tmp_path / "downloads" / "weather.tar").stat().st_size == weather.bytes


def test_the_steps_are_reported(weather: Archive, tmp_path: Path) -> None:
    told: list[str] = []
    obtain(weather, tmp_path, report=lambda what, done, total: told.append(what))
    assert list(dict.fromkeys(told)) == ["weather.tar", "unpacking weather.tar"]


def test_the_record_of_what_was_unpacked_proves_it_later(weather: Archive, tmp_path: Path) -> None:
    obtain(weather, tmp_path)

    record = json.loads((tmp_path / "downloads" / "weather.tar.unpacked.json").read_text())
    assert sorted(record["units"]) == ["fog/1", "fog/5", "snow/1"]
    for unit, digest in record["units"].items():
        assert list(digest_of(tmp_path / "ImageNet-C" / unit)) == digest


@pytest.mark.parametrize("how", ["{url}/elsewhere", "{url}/elsewhere/"])
def test_a_mirror_on_the_web_takes_the_place_of_the_server(
    how: str, server: Behaviour, weather: Archive, tmp_path: Path
) -> None:
    obtain(weather, tmp_path, mirror=how.format(url=server.url))
    assert server.requests == [("/elsewhere/weather.tar", None)]


def test_a_mirror_in_a_folder_needs_no_server_and_stays_as_it_is(
    server: Behaviour, weather: Archive, tmp_path: Path
) -> None:
    folder = tmp_path / "usb"
    folder.mkdir()
    (folder / "weather.tar").write_bytes(server.files["weather.tar"])
    obtain(weather, tmp_path / "root", mirror=str(folder))
    assert contents(tmp_path / "root" / "ImageNet-C") == FILES
    assert (folder / "weather.tar").exists()
    assert server.requests == []


def test_a_wrong_file_in_a_folder_is_reported_and_not_deleted(
    weather: Archive, tmp_path: Path
) -> None:
    (tmp_path / "weather.tar").write_bytes(b"x" * (weather.bytes or 0))
    with pytest.raises(DataError, match=r"has the md5 .* download it again"):
        obtain(weather, tmp_path / "root", mirror=str(tmp_path))
    assert (tmp_path / "weather.tar").exists()


def test_a_folder_without_the_file_is_reported(weather: Archive, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--mirror .*: holds no weather\.tar"):
        obtain(weather, tmp_path, mirror=str(tmp_path))


def test_an_evil_archive_leaves_nothing(
    server: Behaviour, weather: Archive, tmp_path: Path
) -> None:
    content = server.files["weather.tar"] = packed(FILES | {"../evil": b"x"})
    md5 = hashlib.md5(content).hexdigest()
    evil = weather.model_copy(update={"bytes": len(content), "md5": md5})
    root = tmp_path / "root"
    with pytest.raises(DataError, match="path outside the target"):
        obtain(evil, root)
    assert contents(root / "ImageNet-C") == {}
    assert [file.name for file in tmp_path.rglob("*evil*")] == []


def test_an_archive_of_something_else_is_reported(
    server: Behaviour, weather: Archive, tmp_path: Path
) -> None:
    other = weather.model_copy(update={"provides": ("fog", "snow", "frost")})
    with pytest.raises(DataError, match="does not hold frost; it is a different archive"):
        obtain(other, tmp_path)
    assert contents(tmp_path / "ImageNet-C") == {}


def test_a_folder_that_is_there_already_is_not_overwritten(
    server: Behaviour, weather: Archive, tmp_path: Path
) -> None:
    (tmp_path / "ImageNet-C" / "fog").mkdir(parents=True)
    with pytest.raises(DataError, match=r"fog of weather\.tar is there, but snow is not"):
        obtain(weather, tmp_path)
    assert server.requests == []


def test_a_self_made_set_is_not_taken_for_the_published_one(
    server: Behaviour, weather: Archive, tmp_path: Path
) -> None:
    for name in weather.provides:
        (tmp_path / "ImageNet-C" / name).mkdir(parents=True)
    write_manifest(tmp_path / "ImageNet-C", new_manifest({"seed": 0}))
    with pytest.raises(DataError, match=r"holds self-made corruptions .* not the published files"):
        obtain(weather, tmp_path)


def test_an_interrupted_move_resumes(
    server: Behaviour, weather: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_move_into_place", interrupted)
        with pytest.raises(KeyboardInterrupt):
            obtain(weather, tmp_path)
    staged = tmp_path / "ImageNet-C" / ".weather.tar.unpacking"
    (staged / "fog").rename(tmp_path / "ImageNet-C" / "fog")
    assert obtain(weather, tmp_path)
    assert contents(tmp_path / "ImageNet-C") == FILES
    assert len(server.requests) == 1


def test_an_interrupted_unpacking_starts_again_from_the_archive(
    server: Behaviour, weather: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "unpack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            obtain(weather, tmp_path)
    assert contents(tmp_path / "ImageNet-C") == {}
    obtain(weather, tmp_path)
    assert contents(tmp_path / "ImageNet-C") == FILES
    assert len(server.requests) == 1


def test_two_processes_do_not_fetch_the_same_file(weather: Archive, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ctta_bench.datasets.io.files import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    call = [sys.executable, "-c", code, str(tmp_path / "downloads" / "weather.tar")]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(DataError, match=r"weather\.tar: another process is working on it"):
            obtain(weather, tmp_path)
        other.communicate("")
    assert obtain(weather, tmp_path)


def test_the_lock_is_released_after_a_fault(weather: Archive, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no"):
        obtain(weather, tmp_path, mirror=str(tmp_path))
    with locked(tmp_path / "downloads" / "weather.tar"):
        pass


def test_too_small_a_disk_is_reported_before_a_byte_is_fetched(
    server: Behaviour, weather: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1e9))
    large = weather.model_copy(update={"bytes": 22_565_673_785})
    with pytest.raises(DataError, match=r"need 45\.1 GB, but 1\.0 GB are free"):
        obtain(large, tmp_path)
    assert server.requests == []


def test_a_root_that_is_a_file_is_reported(weather: Archive, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        obtain(weather, tmp_path / "root")


# What is known of the real places.


def test_the_published_sizes_and_checksums_stand_in_the_table() -> None:
    table = origins()
    cifar = table["cifar10_c"].archives[0]
    assert (cifar.bytes, cifar.md5) == (2_918_471_680, "56bf5dcef84df0e2308c6dcbcbbd8499")
    noise = table["imagenet_c"].archives[0]
    assert (noise.bytes, noise.md5) == (22_565_673_785, "e80562d7f6c3f8834afb1ecf27252745")
    assert sum(a.bytes or 0 for a in table["imagenet_c"].archives) == 66_022_818_580
    assert table["cifar100_c"].md5["CIFAR-100-C/labels.npy"] == "bb4026e9ce52996b95f439544568cdb2"


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100"])
def test_the_source_sets_are_those_that_torchvision_knows(name: str) -> None:
    theirs = getattr(pytest.importorskip("torchvision.datasets"), name)
    ours = find_origin(f"{name}-C")
    archive = ours.archives[1]
    assert (archive.url, archive.md5) == (theirs.url, theirs.tgz_md5)
    assert archive.provides == (theirs.base_folder,)
    for file, md5 in [*theirs.train_list, *theirs.test_list]:
        assert ours.md5[f"{theirs.base_folder}/{file}"] == md5


def test_the_archives_of_imagenet_c_hold_the_nineteen_corruptions() -> None:
    from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT

    source = find_origin("imagenet_c")
    default = [name for archive in source.chosen(()) for name in archive.provides]
    assert sorted(default) == sorted(CORRUPTIONS)
    (extra,) = source.chosen(("extra",))
    assert sorted(extra.provides) == sorted(HOLD_OUT)


def test_every_source_is_fetched_or_explained() -> None:
    for name, source in origins().items():
        assert bool(source.archives) != bool(source.by_hand), name


def test_what_is_not_fetched_is_explained_in_one_sentence() -> None:
    told = by_hand_sentence("cityscapes_acdc", Path("data"))
    assert told == (
        "cityscapes_acdc is not downloaded by this command: ACDC needs an account: get "
        "rgb_anon_trainvaltest.zip and gt_trainval.zip from https://acdc.vision.ee.ethz.ch; "
        "unpack it so that data holds "
        "rgb_anon/COND/SPLIT/SEQUENCE/*_rgb_anon.png and "
        "gt/COND/SPLIT/SEQUENCE/*_gt_labelTrainIds.png."
    )


def test_an_unknown_benchmark_or_part_is_reported_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"no data is known for 'cifar10'. Did you mean 'cifar10"):
        find_origin("cifar10")
    with pytest.raises(ConfigError, match="--part 'nois': choose noise, blur, weather, digital"):
        find_origin("imagenet_c").chosen(("nois",))
