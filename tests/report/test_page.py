"""Tests of the page around the charts: text in, HTML out."""

from t5x_lite.report import page as report_page
from t5x_lite.report.page import Series


def test_text_is_safe_in_attributes_too():
    assert report_page.text("<a b=\"c\" d='e'>&") == (
        "&lt;a b=&quot;c&quot; d=&#x27;e&#x27;&gt;&amp;"
    )


def test_facts():
    assert report_page.facts([("Last step", "100", "of 400"), ("Loss", "2.5", "")]) == (
        '<dl class="facts"><div><dt>Last step</dt><dd>100<small>of 400</small></dd></div>'
        "<div><dt>Loss</dt><dd>2.5</dd></div></dl>"
    )


def test_table():
    assert report_page.table(("metric", "last"), [("a<b", "1")]) == (
        '<div class="card scroll"><table class="numbers"><thead><tr>'
        '<th scope="col">metric</th><th scope="col">last</th></tr></thead>'
        "<tbody><tr><td>a&lt;b</td><td>1</td></tr></tbody></table></div>"
    )


def test_samples_mark_the_predictions_that_differ():
    same = {"inputs": "a", "targets": "b", "prediction": "b"}
    other = {"inputs": "a", "targets": "b", "prediction": "c"}
    assert "differs" not in report_page.samples_table([same])
    assert '<span class="mark">differs</span> c</div>' in report_page.samples_table([other])


def test_the_logarithmic_switch_needs_values_above_zero():
    def card(*values):
        series = Series(name="training", points=list(enumerate(values)))
        return report_page.chart_card("Loss", [series], name="log0", offer_log=True)

    assert card(1.0, 10.0).count('class="log"') == 1
    assert 'class="log"' not in card(0.0, 10.0)
    assert 'class="log"' not in card(1.0)
    assert card(None) == ""


def test_page_escapes_its_title_and_keeps_its_sections():
    page = report_page.page("a<b", "c&d", ["<p>one</p>", "", "<p>two</p>"])
    assert "<title>a&lt;b</title>" in page
    assert "<p>c&amp;d</p></header>\n<p>one</p>\n<p>two</p>\n</main>" in page
    assert "default-src 'none'" in page
