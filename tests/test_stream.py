import hashlib
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from ctta_bench.errors import ConfigError, DataError
from ctta_bench.stream import (
    ArrayImages,
    Benchmark,
    CorruptionSettings,
    Domain,
    SourceData,
    Stream,
    StreamSettings,
    as_input,
    batch_domains,
)
from ctta_bench.stream.orders import make_order

SIZES = (7, 4, 10)


class Numbered(Benchmark):
    """Three domains whose pictures show their own number: domain d, image i is grey 50 d + i."""

    name = "numbered"

    def domain_names(self) -> tuple[str, ...]:
        return ("a", "b", "c")

    def extra_domains(self) -> tuple[str, ...]:
        return ("held_out",)

    def domain(self, name: str, severity: int | None = None) -> ArrayImages:
        d = "abc".find(name)
        values = 50 * d + np.arange(SIZES[d], dtype=np.uint8)
        images = np.broadcast_to(values[:, None, None, None], (SIZES[d], 3, 2, 2))
        return ArrayImages(images, 100 + values.astype(np.int64))


def settings(**changes: Any) -> StreamSettings:
    return StreamSettings(**{"batch_size": 3, "order": "shuffled"} | changes)


def stream(seed: int = 0, **changes: Any) -> Stream:
    chosen = settings(**changes)
    return Stream(batch_domains(Numbered(chosen)), chosen, seed)


def rows(order: Any) -> list[tuple[int, int, int]]:
    """Round, domain and image of each row, in order."""
    return list(zip(order.round.tolist(), order.domain.tolist(), order.index.tolist(), strict=True))


EVERYTHING = [(d, i) for d, n in enumerate(SIZES) for i in range(n)]
SETTINGS = pytest.mark.parametrize("setting", ["continual", "reset", "mixed"])
ORDERS = pytest.mark.parametrize("order", ["file", "shuffled"])


@SETTINGS
@ORDERS
@pytest.mark.parametrize("rounds", [1, 3])
def test_every_image_comes_exactly_once_a_round(setting: str, order: str, rounds: int) -> None:
    found = rows(make_order(SIZES, settings(setting=setting, order=order, rounds=rounds), 0))
    assert sorted(found) == [(r, d, i) for r in range(rounds) for d, i in EVERYTHING]
    assert [r for r, _, _ in found] == sorted(r for r, _, _ in found)


@pytest.mark.parametrize("setting", ["continual", "reset"])
def test_domains_follow_each_other_and_no_batch_crosses_them(setting: str) -> None:
    batches = list(stream(setting=setting, rounds=2).batches())
    assert [(int(b.domain[0]), len(b.labels)) for b in batches] == 2 * [
        (0, 3), (0, 3), (0, 1), (1, 3), (1, 1), (2, 3), (2, 3), (2, 3), (2, 1),
    ]  # fmt: skip
    assert all(len(set(b.domain.tolist())) == 1 for b in batches)
    starts = [number for number, b in enumerate(batches) if b.starts_domain]
    assert starts == [0, 3, 5, 9, 12, 14]


def test_mixed_batches_hold_several_domains_and_are_full_but_for_the_last() -> None:
    batches = list(stream(setting="mixed", batch_size=8, rounds=2).batches())
    assert [len(b.labels) for b in batches] == [8, 8, 5, 8, 8, 5]
    assert [b.round for b in batches] == [0, 0, 0, 1, 1, 1]
    assert all(len(set(b.domain.tolist())) > 1 for b in batches)


@SETTINGS
def test_images_and_labels_are_those_of_their_rows(setting: str) -> None:
    for batch in stream(setting=setting).batches():
        shown = 50 * batch.domain.astype(np.int64) + batch.index
        assert batch.labels.tolist() == (100 + shown).tolist()
        assert batch.labels.dtype == torch.int64
        assert batch.images.shape == (len(shown), 3, 2, 2)
        torch.testing.assert_close(batch.images[:, 1, 1, 0], torch.from_numpy(shown).float() / 255)


class Graded(Benchmark):
    """Severities 1 to 3: image i of domain d at severity s is grey 100 d + 10 s + i."""

    name = "graded"
    Settings = CorruptionSettings
    severities = (1, 2, 3)
    lowest_label = 0  # of the labels at severity 1

    def domain_names(self) -> tuple[str, ...]:
        return ("a", "b")

    def domain(self, name: str, severity: int | None = None) -> ArrayImages:
        severity = severity or self.settings.severity
        values = 100 * "ab".index(name) + 10 * severity + np.arange(5, dtype=np.uint8)
        images = np.broadcast_to(values[:, None, None, None], (5, 3, 2, 2))
        return ArrayImages(images, np.arange(5) + (self.lowest_label if severity == 1 else 0))


def graded(**changes: Any) -> tuple[Graded, Stream]:
    chosen = CorruptionSettings(**{"batch_size": 4, "order": "shuffled"} | changes)
    benchmark = Graded(chosen)
    return benchmark, Stream(batch_domains(benchmark), chosen, 0)


def test_images_are_those_of_the_severity_of_their_row() -> None:
    _, walk = graded(setting="gradual", severity=3)
    batches = list(walk.batches())
    for batch in batches:
        shown = 100 * batch.domain.astype(int) + 10 * batch.severity + batch.index
        assert (batch.images[:, 0, 0, 0] * 255).round().int().tolist() == shown.tolist()
        assert batch.labels.tolist() == batch.index.tolist()
    assert [int(b.severity[0]) for b in batches[::2]] == [1, 2, 3, 2, 1] * 2
    _, plain = graded(severity=2)
    shown = [b.images[:, 0, 0, 0].mul(255).round().int() // 10 % 10 for b in plain.batches()]
    assert set(torch.cat(shown).tolist()) == {2}


def test_a_mixed_batch_holds_each_image_at_its_row() -> None:
    _, mixed = graded(setting="mixed", severity=3, batch_size=10)
    (batch,) = mixed.batches()
    shown = 100 * batch.domain.astype(int) + 30 + batch.index
    assert (batch.images[:, 2, 1, 1] * 255).round().int().tolist() == shown.tolist()


def test_what_a_stream_needs_is_reported_before_it_is_read() -> None:
    assert graded(severity=2)[0].needed() == [("a", 2), ("b", 2)]
    assert graded(setting="gradual", severity=2, domains=("b",))[0].needed() == [("b", 1), ("b", 2)]
    assert Numbered(settings(domains=("c",))).needed() == [("c", 0)]


def test_a_severity_that_the_benchmark_lacks_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="gradual needs the severities 4, 5, which graded does not"
    ):
        graded(setting="gradual")


def test_severities_with_other_labels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graded, "lowest_label", 7)
    with pytest.raises(DataError, match="domain a of graded: the labels at severity 1 differ from"):
        graded(setting="gradual", severity=2)


def test_batches_go_to_a_loader_s_workers() -> None:
    _, walk = graded(setting="gradual", severity=3)
    there = pickle.loads(pickle.dumps(walk))
    for number in (3, 0):
        assert torch.equal(there.batch(number).images, walk.batch(number).images)


def test_a_published_order_of_domains_is_checked_with_the_domains() -> None:
    with pytest.raises(ConfigError, match=r"rotta orders the 15 corruptions .* without a, b, c"):
        Numbered(settings(domain_order="rotta")).chosen_domains()
    chosen = stream(domain_order="random", order="file", seed=3)
    assert sorted({int(b.domain[0]) for b in chosen.batches()}) == [0, 1, 2]


def test_file_order_is_the_stored_order_whatever_the_seed() -> None:
    for seed in (0, 1):
        found = rows(make_order(SIZES, settings(order="file"), seed))
        assert [(d, i) for _, d, i in found] == EVERYTHING


@SETTINGS
def test_the_seed_alone_decides_the_shuffled_order(setting: str) -> None:
    orders = [rows(make_order(SIZES, settings(setting=setting), seed)) for seed in (5, 5, 6)]
    assert orders[0] == orders[1] != orders[2]


def test_rounds_and_domains_are_shuffled_differently() -> None:
    order = make_order((20, 20), settings(rounds=2), 0)
    permutations = order.index.reshape(4, 20).tolist()
    assert len(set(map(tuple, permutations))) == 4


@SETTINGS
def test_a_stream_of_fewer_rounds_is_a_prefix(setting: str) -> None:
    short, long = (make_order(SIZES, settings(setting=setting, rounds=r), 0) for r in (1, 3))
    assert rows(long)[: len(short.index)] == rows(short)
    assert long.cuts[: len(short.cuts)].tolist() == short.cuts.tolist()


def test_a_stream_of_fewer_domains_is_a_prefix() -> None:
    short, long = make_order(SIZES[:2], settings(), 0), make_order(SIZES, settings(), 0)
    assert rows(long)[: len(short.index)] == rows(short)


def test_the_batch_size_cuts_the_same_order_again() -> None:
    three, five = (make_order(SIZES, settings(batch_size=b), 0) for b in (3, 5))
    assert rows(three) == rows(five)
    assert five.cuts.tolist() == [0, 5, 7, 11, 16, 21]


@SETTINGS
@pytest.mark.parametrize("start", [0, 1, 5, 9])
def test_a_stream_from_a_batch_on_is_the_tail_of_the_whole(setting: str, start: int) -> None:
    whole = list(stream(setting=setting, rounds=2).batches())
    tail = list(stream(setting=setting, rounds=2).batches(start))
    assert len(tail) == len(whole) - start
    for a, b in zip(whole[start:], tail, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
        assert (a.round, a.starts_domain) == (b.round, b.starts_domain)


def test_the_length_is_the_number_of_batches() -> None:
    assert len(stream(rounds=2)) == len(list(stream(rounds=2).batches())) == 18


def test_a_single_domain_starts_again_with_each_round() -> None:
    batches = stream(domains=("b",), rounds=2).batches()
    assert [b.starts_domain for b in batches] == [True, False, True, False]


def test_the_hash_of_the_order_changes_with_all_that_changes_the_stream() -> None:
    hashes = [
        make_order(SIZES, settings(**change), seed).sha256()
        for change, seed in [
            ({}, 0), ({}, 1), ({"rounds": 2}, 0), ({"batch_size": 4}, 0), ({"order": "file"}, 0),
            ({"setting": "mixed"}, 0),
        ]
    ]  # fmt: skip
    hashes.append(make_order((7, 4, 11), settings(), 0).sha256())
    assert len(set(hashes)) == 7
    assert make_order(SIZES, settings(), 0).sha256() == hashes[0]


def test_the_hash_is_the_same_on_every_machine_and_release() -> None:
    order = make_order((2,), settings(order="file", batch_size=2), 0)
    # SHA-256 of domain 0, 0 and round 0, 0 (int16), index 0, 1 and cuts 0, 2 (int64).
    parts = [bytes(4), bytes(8) + b"\x01" + bytes(7), bytes(4), bytes(8) + b"\x02" + bytes(7)]
    assert order.sha256() == hashlib.sha256(b"".join(parts)).hexdigest()


def test_examples_are_the_first_images_of_each_domain() -> None:
    order = stream(examples=4).order
    assert sorted(zip(order.domain.tolist(), order.index.tolist(), strict=True)) == [
        (d, i) for d in range(3) for i in range(4)
    ]


def test_more_examples_than_images_are_an_error() -> None:
    with pytest.raises(DataError, match=r"examples: 5 images .* domain b of numbered has 4"):
        stream(examples=5)


def test_a_part_is_every_fifth_of_the_examples_or_the_others() -> None:
    def seen(**own: Any) -> list[list[int]]:
        found = [domain.images for domain in stream(domains=("a", "c"), **own).domains]
        shown = [100 + images.load(np.arange(len(images.labels)))[:, 0, 0, 0] for images in found]
        assert [images.labels.tolist() for images in found] == [each.tolist() for each in shown]
        return [each.tolist() for each in shown]

    assert seen(part="tuning") == [[100, 105], [200, 205]]
    assert seen(part="scoring") == [
        [101, 102, 103, 104, 106],
        [201, 202, 203, 204, 206, 207, 208, 209],
    ]
    assert seen(part="scoring", examples=6) == [[101, 102, 103, 104], [201, 202, 203, 204]]
    assert "part" not in StreamSettings().record()
    assert StreamSettings(part="tuning").record()["part"] == "tuning"
    with pytest.raises(DataError, match="of 1 images of domain a of numbered none is for scoring"):
        stream(part="scoring", examples=1)


def test_domains_come_in_the_order_they_are_named() -> None:
    chosen = stream(domains=("c", "a"), order="file")
    assert chosen.domain_names == ["c", "a"]
    assert next(iter(chosen.batches())).labels.tolist() == [200, 201, 202]


def test_unknown_domains_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no domain 'fog'; it has a, b, c, held_out"):
        stream(domains=("a", "fog"))
    assert Numbered(settings(domains=("held_out",))).chosen_domains() == ("held_out",)


def test_grey_images_get_three_equal_channels() -> None:
    grey = ArrayImages(np.arange(8, dtype=np.uint8).reshape(2, 2, 2), np.zeros(2, np.int64))
    images = as_input(grey.load(np.array([1, 0])))
    assert images.shape == (2, 3, 2, 2)
    assert (images[:, 2] * 255).round().int().tolist() == [[[4, 5], [6, 7]], [[0, 1], [2, 3]]]


def test_inputs_are_never_the_stored_images_themselves() -> None:
    stored = torch.rand(1, 3, 2, 2)
    as_input(stored).zero_()
    assert bool((stored > 0).any())


# -- source data


def source(labelled: bool = False, seed: int = 0) -> SourceData:
    images = Numbered().domain("c")
    cpu = torch.device("cpu")
    return SourceData(images, labelled=labelled, seed=seed, device=cpu, dtype=torch.float64)


def test_source_batches_hold_every_image_once_in_the_order_of_the_seed() -> None:
    def shown(seed: int) -> list[int]:
        images = torch.cat(list(source(seed=seed).batches(4)))
        return (images[:, 0, 0, 0] * 255).round().int().tolist()

    assert sorted(shown(0)) == list(range(100, 110))
    assert shown(0) == shown(0) != shown(1)
    assert [len(b) for b in source().batches(4)] == [4, 4, 2]
    assert next(source().batches()).dtype == torch.float64
    assert len(source()) == 10


def test_labels_of_the_source_are_hidden_unless_declared() -> None:
    with pytest.raises(DataError, match="unlabelled source access, so it gets no labels"):
        next(source().labelled_batches())
    images, labels = next(source(labelled=True).labelled_batches(10))
    assert labels.tolist() == ((images[:, 0, 0, 0] * 255).round().long() + 100).tolist()
    assert torch.equal(images, next(source().batches(10)))


def test_batches_of_the_source_carry_no_labels() -> None:
    assert all(isinstance(batch, torch.Tensor) for batch in source(labelled=True).batches(4))
    assert "label" not in str(inspect.signature(SourceData.batches))


def test_a_domain_has_as_many_images_as_labels() -> None:
    assert len(Domain("a", Numbered().domain("a"))) == 7
