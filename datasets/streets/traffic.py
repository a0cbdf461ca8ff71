"""Placement of furniture, traffic and people in a street; painted from far to near."""

from typing import Any

import numpy as np

from ctta_bench.datasets.streets.canvas import Canvas, Street
from ctta_bench.datasets.streets.objects import bicycle, person, pole
from ctta_bench.datasets.streets.plants import tree
from ctta_bench.datasets.streets.vehicles import box_vehicle, car


def paint_things(canvas: Canvas, rng: np.random.Generator, street: Street) -> None:
    """Paint furniture, vehicles and people, from far to near."""
    things: list[tuple[float, Any, tuple[Any, ...]]] = []
    _furniture(things, rng, street)
    _traffic(things, rng, street)
    _people(things, rng, street)
    for z, paint, arguments in sorted(things, key=lambda thing: -thing[0]):
        x, *rest = arguments
        paint(canvas, rng, x, z, *rest)


def _furniture(things: list[Any], rng: np.random.Generator, street: Street) -> None:
    for s, sign in ((0, -1), (1, 1)):
        kerb = street.edge(s) + 0.45
        start, step = rng.uniform(5, 20), rng.uniform(18, 32)
        for z in np.arange(start, min(110, street.end), step):
            things.append((z, pole, (sign * kerb, "lamp", -sign)))
        for _ in range(rng.poisson(1.6)):
            things.append((rng.uniform(6, 45), pole, (sign * kerb, "sign", -sign)))
        if rng.random() < 0.45:
            things.append((rng.uniform(7, 35), pole, (sign * kerb, "light", -sign)))
        if rng.random() < 0.6:
            place = street.edge(s) + rng.uniform(0.6, 1.4)
            first, gap = rng.uniform(6, 16), rng.uniform(7, 16)
            for z in np.arange(first, min(80, street.end), gap):
                if rng.random() < 0.8:
                    things.append((z + rng.uniform(-1, 1), tree, (sign * place,)))
        for _ in range(rng.poisson(1.2)):
            x = sign * (street.front(s) + rng.uniform(-0.6, 0.4))
            things.append((rng.uniform(6, 40), tree, (x, True)))
        for _ in range(rng.poisson(0.5)):
            x = sign * (street.edge(s) + street.sidewalk[s] - 0.5)
            things.append((rng.uniform(6, 22), bicycle, (x, False, True)))


def _traffic(things: list[Any], rng: np.random.Generator, street: Street) -> None:
    for s, sign in ((0, -1), (1, 1)):  # parked along the kerb
        if rng.random() < 0.7:
            x, z = sign * (abs(street.road[s]) - 1.0), rng.uniform(5, 14)
            while z < 70:
                if rng.random() < 0.65 and abs(x) > 1.5:
                    things.append((z, car, (x, bool(s == 0))))
                z += rng.uniform(5.6, 9)
    ahead = rng.uniform(9, 45)
    kinds: tuple[Any, ...] = ((car, ()), (box_vehicle, ("truck",)), (box_vehicle, ("bus",)))
    for x, oncoming, near in ((0.0, False, ahead), (-street.lane, True, rng.uniform(8, 30))):
        z = near
        while z < 90:
            if rng.random() < 0.75:
                paint, more = kinds[int(rng.choice(3, p=(0.7, 0.15, 0.15)))]
                things.append((z, paint, (x + rng.uniform(-0.3, 0.3), oncoming, *more)))
            z += rng.uniform(14, 40)


def _people(things: list[Any], rng: np.random.Generator, street: Street) -> None:
    for s, sign in ((0, -1), (1, 1)):
        for _ in range(rng.poisson(3.2)):
            x = sign * (street.edge(s) + rng.uniform(0.4, max(0.5, street.sidewalk[s] - 0.3)))
            things.append((float(rng.gamma(2.2, 7) + 5), person, (x,)))
    if rng.random() < 0.3:
        z = rng.uniform(8, 28)
        for _ in range(rng.integers(1, 4)):
            x = rng.uniform(street.road[0] + 1, street.road[1])
            things.append((z + rng.uniform(-0.8, 0.8), person, (x,)))
    for _ in range(rng.poisson(0.9)):
        s = int(rng.integers(2))
        x = (-1, 1)[s] * (abs(street.road[s]) - rng.uniform(0.5, 2.2))
        things.append((rng.uniform(6, 24), bicycle, (x, True, bool(rng.random() < 0.4))))
