"""Bars and histograms: the SVG says what the numbers say."""

import re
from xml.etree import ElementTree

import pytest

from t5x_lite.report.c4_bars import histogram, share_bar


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
