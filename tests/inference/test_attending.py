"""The attention page, as text and in a real browser."""

import base64
import json
import re
from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.inference.attending import Attention
from bert_jax.inference.bert import Bert
from bert_jax.inference.filling import Guess
from tests.interop.small_bert import make_pretrained
from tests.test_predict import run

HOSTILE = ["[CLS]", "</script><script>hacked=1</script>", "<!--", "[SEP]", "<b>é&amp;", "[SEP]"]
LAYERS, HEADS, LENGTH = 2, 3, len(HOSTILE)


@pytest.fixture(scope="module")
def view():
    probabilities = np.random.default_rng(0).dirichlet([0.5] * LENGTH, (LAYERS, HEADS, LENGTH))
    guesses = {4: [Guess("</script>", 0.75), Guess("<i>", 0.003)]}
    return Attention(HOSTILE, 4, probabilities.astype(np.float32), guesses)


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_data_matches_the_view(view):
    data = data_of(view.page())
    assert data["tokens"] == HOSTILE and data["first"] == 4
    assert data["guesses"] == [[4, [["</script>", 0.75], ["<i>", 0.003]]]]
    halves = np.frombuffer(base64.b64decode(data["attention"]), "<u2").astype(np.uint32)
    found = (halves << 16).view(np.float32).reshape(data["layers"], data["heads"], LENGTH, LENGTH)
    np.testing.assert_allclose(found, view.probabilities_NxAxLxL, rtol=1 / 256)


def test_tokens_cannot_inject_html(view):
    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.opened = []

        def handle_starttag(self, tag, attributes):
            self.opened.append(tag)

    tags = Tags()
    tags.feed(view.page())
    assert tags.opened.count("script") == 2 and "b" not in tags.opened


def test_page_loads_nothing_from_elsewhere(view):
    page = view.page()
    assert "default-src 'none'" in page
    assert not re.search(
        r"https?:|//cdn|@import|url\(|<link (?!rel=\"icon\" href=\"data:,\")", page
    )


def percents(values):
    """Formats values in bfloat16 as the page does."""
    return [
        f"{np.floor(100 * x + 0.5):.0f} %" if x >= 0.005 else "<1 %" if x > 0 else "0 %"
        for x in np.asarray(values).astype(jnp.bfloat16).astype(float)
    ]


def test_tokens_are_shown_as_they_are(browser, view):
    script = '[texts(".token span"), typeof hacked, texts("#guesses td:first-child"), '
    script += 'texts("#guesses td:last-child"), $("guesses").hidden, texts(".segment").length]'
    assert browser(view.page(), script) == [
        HOSTILE,
        "undefined",
        ["</script>", "<i>"],
        ["75 %", "<1 %"],
        False,
        2,
    ]


def test_the_browser_runs_only_the_script_of_the_page(browser, view):
    page = view.page().replace("<body>", "<body><script>document.title = 'hacked'</script>")
    shown = browser.shown(page)
    assert "<title>What BERT attends to" in shown and 'class="token"' in shown


def test_hovering_over_a_token_shows_its_attention(browser, view):
    script = """(choose("layer", 2), choose("head", 3), point(buttons[1]),
        [texts(".token small"), buttons.map((b) => b.style.backgroundColor),
         $("weights-title").textContent, texts("#weights td:first-child")])"""
    shown, colours, title, listed = browser(view.page(), script)
    expected = view.probabilities_NxAxLxL[1, 2, 1]
    assert shown == percents(expected)
    alphas = [float(re.findall(r"[\d.]+", colour)[-1]) for colour in colours]
    np.testing.assert_allclose(alphas, 0.9 * expected, atol=0.01)
    assert title == f"{HOSTILE[1]} (2) attends to"
    order = np.argsort(-expected.astype(jnp.bfloat16).astype(float), kind="stable")
    assert listed == [f"{HOSTILE[i]} ({i + 1})" for i in order]


def test_mean_reverse_direction_and_hidden_special_tokens(browser, view):
    script = """(choose("layer", 1), choose("head", 0), point(buttons[4]),
        [texts(".token small"),
         (choose("head", 2), choose("direction", "to"), texts(".token small")),
         (choose("direction", "from"), $("plain").click(), texts(".token small"))])"""
    mean, to, plain = browser(view.page(), script)
    probabilities_AxLxL = view.probabilities_NxAxLxL[0]
    near = [float(text.strip("<% ")) for text in mean]
    np.testing.assert_allclose(near, 100 * probabilities_AxLxL.mean(0)[4], atol=1)
    assert to == percents(probabilities_AxLxL[1, :, 4])
    special = np.array([token in ("[CLS]", "[SEP]") for token in HOSTILE])
    left = np.where(special, 0, probabilities_AxLxL[1, 4])
    near = [float(text.strip("<% ")) for text in plain]
    np.testing.assert_allclose(near, 100 * left / left.sum(), atol=1)


def test_edges_of_several_heads_above_a_threshold(browser, view):
    click = """(head, keys = {}) => document.querySelector(
        `#heads button[data-layer="2"][data-head="${head}"]`).dispatchEvent(
        new MouseEvent("click", keys))"""
    edges = """() => all("#edges line").map((line) => ["y1", "y2", "opacity"].map(
        (name) => Number(line.getAttribute(name))))"""
    script = f"""((click, edges, least) => [
        (click(1), click(3, {{ ctrlKey: true }}), least(20), edges()),
        $("head").selectedOptions[0].textContent, location.hash,
        (point(buttons[1]), edges().length, texts(".token small")),
        (least(60), edges().length),
        (click(1, {{ shiftKey: true }}), $("head").value)])({click}, {edges}, (value) => {{
            $("least").value = value; $("least").dispatchEvent(new Event("input")); }})"""
    shown, option, address, of_token, few, head = browser(view.page(), script)
    mean_LxL = view.probabilities_NxAxLxL[1, [0, 2]].mean(0)
    expected = {(y, x): mean_LxL[y, x] for y, x in np.argwhere(mean_LxL >= 0.2)}
    found = {(int(a // 22), int(b // 22)): opacity for a, b, opacity in shown}
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[key] for key in expected], [*expected.values()], rtol=0.01)
    assert option == "mean of 1, 3" and "head=1-3" in address and "least=20" in address
    assert of_token == percents(mean_LxL[1])
    assert few == (mean_LxL[1] >= 0.6).sum() and head == "3"


def test_the_command_writes_a_page(tmp_path):
    from bert_jax.interop import formats

    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    output = tmp_path / "view.html"
    finished = run(
        f"--model={tmp_path / 'hf'}",
        "attention",
        "a [MASK] c",
        "the </script>",
        "--top_k=2",
        f"--output={output}",
    )
    assert finished.returncode == 0, finished.stderr
    page = output.read_text("utf-8")
    expected = Bert(make_pretrained()).attention("a [MASK] c", "the </script>", top_k=2)
    data = data_of(page)
    assert data["tokens"] == expected.tokens
    (guesses,) = [guesses for _, guesses in data["guesses"]]
    assert [token for token, _ in guesses] == [guess.token for guess in expected.guesses[2]]
