"""Extracts the text passages of an article from its wikitext.

As in the Wikipedia text of BERT's paper, headings, lists, tables, templates, references, images and
categories are dropped. docs/data.md compares the result with that of a full parser.
"""

import html
import re
from collections.abc import Collection

# What begins or ends a construct. All alternatives begin with a literal, for a fast search.
_MARKER = re.compile(
    r"<!--|</?(?P<tag>[A-Za-z]+)(?:\s[^<>]*|/)?>|\{\{|\}\}|\{\||\|\}(?!\})|\[\[|\]\]|\]"
    r"|\[(?:[a-z]+:)?//[^\s\]<>]*"
)
_BEGINNINGS = {"}}": "{{", "|}": "{|", "]]": "[[", "]": "["}
# Tags whose content has no wikitext. Only the content of "nowiki" is kept as text.
_OPAQUE = {
    name: re.compile(rf"</{name}\s*>", re.IGNORECASE)
    for name in (
        "nowiki ref math chem ce gallery imagemap timeline score graph hiero mapframe maplink pre "
        "source syntaxhighlight inputbox"
    ).split()
}
# Tags whose content is dropped and may contain the same tag.
_NESTED = ("table", "ul", "ol", "dl")
_LINE_BREAKS = ("br", "p", "div", "blockquote")
# Lists, headings, rules, and what remains of tables.
_NO_PASSAGE = re.compile(r"^[ \t]*(?:[*#;:=|!]|----).*$", re.MULTILINE)
# Bold, italic, and switches such as __NOTOC__. More marks in a row surrounded a dropped template.
_MARKS = re.compile(r"'{2,}|__[A-Z]+__")
# A template may have been all that there was in parentheses.
_EMPTY_PARENTHESES = re.compile(r" \([\s,;]*\)")
# A match begins at the first space or tab only, so that a long run of them is read once.
_BLANK_LINES = re.compile(r"(?<![ \t])[ \t]*\n\s*\n\s*")
# The most beginnings that are open at once. The earliest are dropped: what is in many constructs is
# copied as often.
_MAX_DEPTH = 100
# "[[fr:Anarchisme]]" is the same article in another language.
_OTHER_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?:\S")


def passages(text: str, dropped_links: Collection[str] = ()) -> str:
    """Returns the text passages, with blank lines between paragraphs.

    A beginning without an end is dropped, but not what follows; so is an end without a beginning.

    Args:
      dropped_links: The namespaces whose links are dropped, such as that of images, in lower case.
    """
    pieces: list[str] = []
    # What has begun, and the number of pieces before it.
    begun: list[tuple[str, int]] = []
    unclosed: set[str] = set()
    at = 0
    while marker := _MARKER.search(text, at):
        start, found = marker.start(), marker[0]
        pieces.append(text[at:start])
        at = marker.end()
        if found == "<!--":
            at = text.find("-->", at) + 3
            if at < 3:
                return _cleaned("".join(pieces))
        elif tag := (marker["tag"] or "").lower():
            is_end = found[1] == "/"
            if tag in _NESTED and is_end:
                _end(tag, begun, pieces)
            elif tag in _NESTED:
                begun.append((tag, len(pieces)))
            elif tag in _LINE_BREAKS:
                pieces.append("\n")
            elif tag in _OPAQUE and tag not in unclosed and not is_end and found[-2] != "/":
                if end := _OPAQUE[tag].search(text, at):
                    pieces.append(text[at : end.start()] if tag == "nowiki" else "")
                    at = end.end()
                else:
                    unclosed.add(tag)
        elif "|" in found and not _begins_line(text, start):
            # A table begins and ends at the start of a line.
            pieces.append(found)
        elif found not in _BEGINNINGS:
            begun.append((found if found in ("{{", "{|", "[[") else "[", len(pieces)))
        elif found in ("}}", "|}"):
            _end(_BEGINNINGS[found], begun, pieces)
        elif begun and begun[-1][0] == "[":
            # The end of a link to a page may begin with that of a link to a site.
            at = start + 1
            begun.pop()
        elif found == "]":
            pieces.append(found)
        elif begun and begun[-1][0] == "[[":
            link = _end("[[", begun, pieces)
            pieces.append(_link_text(link, dropped_links))
        del begun[:-_MAX_DEPTH]
    return _cleaned("".join([*pieces, text[at:]]))


def _begins_line(text: str, at: int) -> bool:
    """Returns whether only blanks and marks of indentation are before a position on its line."""
    while at and text[at - 1] in " \t:":
        at -= 1
    return not at or text[at - 1] == "\n"


def _end(kind: str, begun: list[tuple[str, int]], pieces: list[str]) -> str:
    """Removes the last beginning of this kind and the pieces after it, which it returns joined."""
    for depth in reversed(range(len(begun))):
        if begun[depth][0] == kind:
            first = begun[depth][1]
            content = "".join(pieces[first:])
            del begun[depth:], pieces[first:]
            return content
    return ""


def _link_text(link: str, dropped_links: Collection[str]) -> str:
    target, bar, label = link.partition("|")
    namespace, colon, _ = target.partition(":")
    is_dropped = colon and namespace.strip().lower() in dropped_links
    # The options of an image follow bars. The dump does not list all names of its namespace.
    if is_dropped or "|" in label or not bar and _OTHER_LANGUAGE.match(target):
        return ""
    return label if bar else target.removeprefix(":")


def _cleaned(text: str) -> str:
    text = _MARKS.sub("", _NO_PASSAGE.sub("\n", text))
    text = _EMPTY_PARENTHESES.sub("", html.unescape(text))
    return _BLANK_LINES.sub("\n\n", text).strip()
