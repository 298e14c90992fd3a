"""A text of a corpus, and the checks that every text passes."""

from typing import NamedTuple

from bert_jax.text.bad_records import BadRecord
from bert_jax.text.sources import Place


class Document(NamedTuple):
    """A text and its place.

    Attributes:
      line: The line at which the text starts, or the number of the example or page; see `Place`.
      is_split: Whether each line of the text is one sentence.
      is_heldout: Whether the text is set aside for evaluation.
      start: The first byte of the piece of the file; see `Place`.
      language: The language if the source names it, as a dump of Wikipedia does.
      id: What the source calls the document: the value of `data.document_field`, or the wiki and
        the id of a page; empty if it has no name.
    """

    source: str
    line: int
    text: str
    is_split: bool
    is_heldout: bool = False
    start: int = 0
    language: str = ""
    id: str = ""

    @property
    def place(self) -> Place:
        return Place(self.source, self.line, self.start)


def checked(text: str, problem: str = "the document has no text") -> str:
    """Returns a text; raises BadRecord if it is blank."""
    if not text.strip():
        raise BadRecord("empty", problem)
    return text
