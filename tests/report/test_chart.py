"""Tests of the charts: numbers in, labels and SVG out."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from t5x_lite.report.page import (
    Series,
    downsample,
    histogram,
    labels,
    line_chart,
    log_ticks,
    number,
    share_bar,
    ticks,
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (7.0, "7"),
        (1000, "1,000"),
        (9999.6, "10k"),
        (12345, "12.35k"),
        (150_000, "150k"),
        (11_234_816, "11.23M"),
        (2.31749, "2.317"),
        (0.004, "0.004"),
        (0.00001, "1.00e-05"),
        (-2.5, "-2.5"),
        (3e20, "3.00e+20"),
    ],
)
def test_number(value, words):
    assert number(value) == words


def test_labels_tell_numbers_apart():
    assert labels([1_000_000, 1_000_500, 1_001_000]) == ["1M", "1.0005M", "1.001M"]
    assert labels([0.5, 1.0]) == ["0.5", "1"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.13, 0.92, [0.2, 0.4, 0.6, 0.8]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (0, 2000, [0, 500, 1000, 1500, 2000]),
        (3, 3, [3]),
    ],
)
def test_ticks(low, high, expected):
    assert ticks(low, high) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.5, 2000, [1, 10, 100, 1000]),
        (1, 10, [1, 2, 5, 10]),
        (3, 4, [3, 3.2, 3.4, 3.6, 3.8, 4]),
    ],
)
def test_log_ticks(low, high, expected):
    assert log_ticks(low, high) == expected


def test_downsample_keeps_extremes_and_gaps():
    points = [(step, 1.0 + step % 3) for step in range(10_000)]
    points[1234] = (1234, -5.0)
    points[5678] = (5678, 99.0)
    points[9001] = (9001, None)
    kept = downsample(points, limit=200)
    assert 50 < len(kept) <= 200
    assert kept == sorted(kept, key=lambda point: point[0])
    assert {points[0], points[1234], points[5678], points[9001], points[-1]} <= set(kept)
    assert downsample(points[:200], limit=200) == points[:200]


def coordinates(svg):
    """(x, y) of every dot."""
    return [
        (float(x), float(y)) for x, y in re.findall(r'class="dot" cx="([\d.]+)" cy="([\d.]+)"', svg)
    ]


def test_line_chart_places_points():
    series = Series(name="a<b", points=[(0, 0.0), (50, 50.0), (100, 100.0)], colour=1)
    svg = line_chart("Loss", [series])
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == "Loss, steps 0 to 100"
    # The plot spans x 68 .. 458 and y 222 .. 10; values 0 .. 104.
    assert coordinates(svg) == [(68.0, 222.0), (263.0, 120.1), (458.0, 18.2)]
    assert 'class="line" d="M68.0 222.0L263.0 120.1L458.0 18.2"' in svg
    titles = [title.text for title in root.iter("title")]
    assert titles == ["step 0: a<b 0", "step 50: a<b 50", "step 100: a<b 100"]


def test_a_logarithmic_axis_spaces_powers_of_ten_evenly():
    svg = line_chart("Loss", [Series(name="a", points=[(0, 1.0), (1, 10.0), (2, 100.0)])], log=True)
    heights = [y for _, y in coordinates(svg)]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.11)
    assert re.findall(r'class="y"[^>]*>(.*?)<', svg) == ["1", "10", "100"]


def test_an_axis_from_zero():
    svg = line_chart("Rate", [Series(name="a", points=[(0, 90.0), (1, 100.0)])], from_zero=True)
    assert re.findall(r'class="y"[^>]*>(.*?)<', svg)[0] == "0"


def test_values_that_are_none_leave_a_gap():
    points = [(1, 1.0), (2, 2.0), (3, None), (4, 4.0), (5, 5.0)]
    svg = line_chart("Loss", [Series(name="a", points=points)])
    assert svg.count('class="line"') == 2


@pytest.mark.parametrize("point", [(0, 0.0), (7, -3.0), (1_000_000, 2.5)])
def test_a_single_point_is_a_dot(point):
    svg = line_chart("Loss", [Series(name="a", points=[point])])
    ((x, y),) = coordinates(svg)
    assert 68 <= x <= 458
    assert 10 <= y <= 222
    assert "nan" not in svg


def test_nothing_to_draw():
    assert line_chart("Loss", []) == ""
    assert line_chart("Loss", [Series(name="a", points=[(1, None)])]) == ""


def test_a_long_curve_stays_small():
    series = Series(name="a", points=[(step, float(step % 7)) for step in range(100_000)])
    svg = line_chart("Loss", [series])
    assert svg.count("<title>") <= 250
    assert len(svg) < 100_000


@pytest.mark.parametrize(
    ("share", "width"), [(0.0, "0.00"), (0.25, "25.00"), (1.0, "100.00"), (1.5, "100.00")]
)
def test_a_bar_is_as_wide_as_its_share(share, width):
    bar = ElementTree.fromstring(share_bar(share))
    assert bar.findall("rect")[1].attrib["width"] == width


def test_a_histogram_has_a_bar_for_each_power_of_two_between_the_ends():
    shown = histogram("Characters", {6: 10, 8: 30})
    heights = [float(height) for height in re.findall(r'<rect class="dot".*?height="(.*?)"', shown)]
    assert len(heights) == 3
    assert heights[0] == pytest.approx(heights[2] / 3, rel=1e-2)
    assert heights[1] == 0.0
    assert "32 to 63 characters: 10 pages (25.0%)" in shown
    assert "128 to 255 characters: 30 pages (75.0%)" in shown
    ElementTree.fromstring(shown)


def test_an_empty_text_has_its_own_bar():
    assert "<title>0 characters: 5 pages (100.0%)</title>" in histogram("Characters", {0: 5})


def test_no_page_no_histogram():
    assert histogram("Characters", {}) == ""


def test_the_title_is_escaped():
    assert "<b>" not in histogram("<b>", {3: 1})
