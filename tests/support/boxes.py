"""Boxes element by element: slow and obvious."""

from holdfast.plan.units import Box


def elements(box: Box) -> list[tuple[int, ...]]:
    points: list[tuple[int, ...]] = [()]
    for low, high in box:
        points = [(*point, i) for point in points for i in range(low, high)]
    return points
