import re

from dashboards.pages.html import render_page
from dashboards.pictures.theme import Picture, figure


def test_a_page_holds_style_script_and_figures_and_escapes_the_rest():
    drawing = figure("x </script>")
    drawing.add_scatter(x=[1], y=[1], name="<a>", line={"color": "#fff"})
    picture = Picture("alpha", "Score & alpha", "No <trial>.", (drawing, drawing))
    trials = (["score <b>"], [[("0.79", "0.7912", "number")], [('a"b', 'a"b', "")]])
    page = render_page(
        "demo <1>", "meta", ["verdict <2>: `type <3> --n`"], {"Verdict": [picture]}, trials
    )
    assert (
        '<th scope="col" class="number"><button type="button">score &lt;b&gt;</button></th>' in page
    )
    assert '<td class="number" data-value="0.7912" data-heading="score &lt;b&gt;">0.79</td>' in page
    assert (
        '<td class="number" data-value="a&#34;b" data-heading="score &lt;b&gt;">a&#34;b</td>'
        in page
    )
    for text in ("demo &lt;1&gt;", "Score &amp; alpha", "No &lt;trial&gt;.", "&lt;a&gt;"):
        assert text in page
    assert (
        'verdict &lt;2&gt;: <code>type &lt;3&gt; <span style="white-space: '
        'nowrap">--n</span></code>' in page
    )
    assert "color-scheme: light dark" in page and "addEventListener('beforeprint'" in page
    assert 'id="alpha-0"' in page and 'id="alpha-1"' in page
    # Neither a figure's text nor the page's own files may end a script element early.
    assert len(re.findall(r"<script\b", page)) == len(re.findall("</script>", page)) == 3
