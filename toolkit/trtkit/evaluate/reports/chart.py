"""Lines in a coordinate system as inline SVG: no script, nothing from elsewhere. Knows numbers, not what they mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 190, 12, 40
PALETTE = ("#33638d", "#e08a2e", "#2f9e66", "#8a4fa3", "#c8372d", "#4b9aa8", "#8c6d1f", "#6b7686")


@dataclass(frozen=True)
class Line:
    """One line: its name in the legend and its points (x, y), at least one, by rising x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """A label, and the range to show; None takes it from the lines."""

    label: str
    low: float | None = None
    high: float | None = None


def chart(lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """A figure of all lines; empty text when there is no point to draw."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    xs, ys = _range(x, [point[0] for point in points]), _range(y, [point[1] for point in points])
    parts = [*_grid(xs, ys), *_labels(x, y)]
    for number, line in enumerate(lines):
        parts += _drawn(line, number, xs, ys)
    return (
        f'<figure><svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(y.label)} over {escape(x.label)}">{"".join(parts)}</svg></figure>'
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) inside a range, about five of them."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, math.floor(high / step + 1e-9) + 1)]


_Range = tuple[float, float]


def _range(axis: Axis, values: Sequence[float]) -> _Range:
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    return (low, high) if high > low else (low, low + 1)


def _place(point: tuple[float, float], xs: _Range, ys: _Range) -> tuple[float, float]:
    across = (point[0] - xs[0]) / (xs[1] - xs[0])
    up = (point[1] - ys[0]) / (ys[1] - ys[0])
    return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)


def _grid(xs: _Range, ys: _Range) -> list[str]:
    parts = []
    for value in ticks(*ys):
        left, height = _place((xs[0], value), xs, ys)
        parts.append(f'<path d="M{left:.1f} {height:.1f}H{_WIDTH - _RIGHT}" stroke="#e4e8ee"/>')
        parts.append(_text(f"{value:g}", left - 6, height + 4, "end"))
    for value in ticks(*xs):
        across, bottom = _place((value, ys[0]), xs, ys)
        parts.append(_text(f"{value:g}", across, bottom + 16, "middle"))
    return parts


def _labels(x: Axis, y: Axis) -> list[str]:
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    up = _TOP + (_HEIGHT - _TOP - _BOTTOM) / 2
    turned = f'transform="rotate(-90 12 {up:.0f})"'
    return [_text(x.label, middle, _HEIGHT - 6, "middle"), _text(y.label, 12, up, "middle", turned)]


def _drawn(line: Line, number: int, xs: _Range, ys: _Range) -> list[str]:
    color = PALETTE[number % len(PALETTE)]
    places = [_place(point, xs, ys) for point in line.points]
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up in places)
    legend = _TOP + 8 + 16 * number
    parts = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>']
    parts += [f'<circle cx="{across:.1f}" cy="{up:.1f}" r="2.2" fill="{color}"/>' for across, up in places]
    parts.append(f'<rect x="{_WIDTH - _RIGHT + 14}" y="{legend - 8}" width="10" height="10" fill="{color}"/>')
    parts.append(_text(line.name, _WIDTH - _RIGHT + 30, legend + 1, "start"))
    return parts


def _text(text: str, across: float, up: float, anchor: str, extra: str = "") -> str:
    place = f'x="{across:.1f}" y="{up:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="11" fill="#5b6775" {extra}>{escape(text)}</text>'
