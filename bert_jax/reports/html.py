"""The parts that all HTML pages of reports share: tables, sections and the document."""

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape
from importlib import resources

# The same symbols as the markers in `curves.py`.
_SYMBOLS = "●■◆▲▼✚✖★"


class Html(str):
    """Text that is already HTML; all other text is escaped."""


def document(title: str, body: str, num_colors: int) -> str:
    """Makes a page that fetches nothing and runs only the script of page.html.

    Args:
      title: The title of the page.
      body: The HTML of its body.
      num_colors: The number of colors, which are the variables --run0, --run1, ...
    """
    template = read_page("bert_jax.reports", "page.html")
    colors = "".join(
        f"--run{i}: oklch(var(--light{i % 3}) var(--chroma) {(190 + 162 * i) % 360});"
        for i in range(num_colors)
    )
    values = {"COLORS": colors, "TITLE": escape(title), "BODY": body}
    return re.sub("__([A-Z]+)__", lambda match: values[match[1]], template)


def read_page(package: str, name: str) -> str:
    """Reads the template of a page, whose policy lets the browser run the template's script only.

    The browser then runs no other script, whatever else the page may contain.
    """
    page = resources.files(package).joinpath(name).read_text("utf-8")
    start = page.index("<script>") + len("<script>")
    script = page[start : page.index("</script>", start)]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page.replace("__DIGEST__", digest)


def colored_name(names: Sequence[str], number: int) -> Html:
    """Returns a name after the symbol and in the color of its curves or points."""
    symbol = _SYMBOLS[number % len(_SYMBOLS)]
    return Html(f'<i style="color: var(--run{number})">{symbol}</i>&nbsp;{escape(names[number])}')


def section(title: str, *content: str) -> str:
    """Makes a heading with the content below it."""
    return f"<h2>{escape(title)}</h2>\n" + "\n".join(content)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Makes a table; without headers, it has only rows."""

    def line(tag: str, cells: Sequence[str]) -> str:
        texts = (cell if isinstance(cell, Html) else escape(cell) for cell in cells)
        return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"

    lines = [line("th", headers)] * bool(headers) + [line("td", row) for row in rows]
    return f"<div class=wide><table>{''.join(lines)}</table></div>"
