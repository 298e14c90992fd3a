"""A label for every word of a text, and the entities of these: `bert.tag`, `bert.entities`."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from etils import epath
from scipy.special import softmax

from bert_jax.base.errors import UserError
from bert_jax.heads.head import Head
from bert_jax.heads.verb import TEXT, FileFormat, Item, Verb, objects, value_of, values_of
from bert_jax.tasks import ner_tags
from bert_jax.tasks.ner import WORD_FIELDS, TaggedRows, is_conll, read_file
from bert_jax.text.bad_records import BadRecords
from bert_jax.tokenizers.given_texts import as_texts

if TYPE_CHECKING:
    from bert_jax.inference.finetuned import FineTuned


class TaggedWord(NamedTuple):
    """A word, its tag, the tag's probability, and the span of the word in the text, if any."""

    word: str
    tag: str
    probability: float
    start: int | None = None
    end: int | None = None


class Entity(NamedTuple):
    """An entity, its span in the text, and the lowest probability of its tags."""

    type: str
    text: str
    start: int
    end: int
    probability: float


def tag(
    bert: "FineTuned", text: str | Sequence[str] | Sequence[Sequence[str]]
) -> list[TaggedWord] | list[list[TaggedWord]]:
    """Tags every word.

    Args:
      text: A text (see `word_spans`), a list of words, or a list of lists of words, which gives
        a list of lists.
    """
    if isinstance(text, str):
        return tag_texts(bert, [text])[0]
    is_list = isinstance(text, Iterable) and not isinstance(text, Mapping)
    words = list(text) if is_list else as_texts(text)
    if words and not any(isinstance(word, str) for word in words):
        return _tag(bert, [as_texts(sentence) for sentence in words])
    return _tag(bert, [as_texts(words)])[0]


def entities(bert: "FineTuned", text: str) -> list[Entity]:
    """Finds the entities of a text: neighboring words whose tags belong together."""
    return entities_of(text, tag(bert, text))


def tag_texts(bert: "FineTuned", texts: Sequence[str]) -> list[list[TaggedWord]]:
    """Tags every word of each text; see `tag`."""
    texts = as_texts(texts)
    by_letter = bert.tokenizer.kind == "protein"
    spans = [word_spans(text, by_letter=by_letter) for text in texts]
    words = [[text[a:b] for a, b in found] for text, found in zip(texts, spans, strict=True)]
    return [
        [word._replace(start=a, end=b) for word, (a, b) in zip(tagged, found, strict=True)]
        for tagged, found in zip(_tag(bert, words), spans, strict=True)
    ]


def entities_of(text: str, words: Sequence[TaggedWord]) -> list[Entity]:
    # A label without B or I is a type.
    tags = [ner_tags.parse(word.tag) or f"I-{word.tag}" for word in words]
    found = []
    for type_, first, last in ner_tags.entities(tags):
        start, end = words[first].start, words[last].end
        probability = min(word.probability for word in words[first : last + 1])
        found.append(Entity(type_, text[start:end], start, end, probability))
    return found


def _tag(bert: "FineTuned", sentences: list[list[str]]) -> list[list[TaggedWord]]:
    if not all(
        words and all(isinstance(word, str) and word.strip() for word in words)
        for words in sentences
    ):
        raise UserError("there must be a word to tag, and no word may be empty")
    rows = TaggedRows(sentences, None, bert.tokenizer, bert.max_length)
    logits = [x[0] for x in bert.outputs(list(rows))]
    positions = zip(rows.word_row_W, rows.word_position_W, strict=True)
    probabilities = (softmax(logits[n][at].astype(np.float64)) for n, at in positions)
    tagged = []
    for words in sentences:
        tagged.append([])
        for word, probs_C in zip(words, probabilities, strict=False):
            best = int(np.argmax(probs_C))
            tagged[-1].append(TaggedWord(word, bert.labels[best], float(probs_C[best])))
    return tagged


def word_spans(text: str, *, by_letter: bool = False) -> list[tuple[int, int]]:
    """Finds the words of a text: runs of letters and digits, and single other characters.

    Accents and joiners belong to the character before them. With `by_letter`, each letter is a
    word, as in a protein.
    """
    spans: list[tuple[int, int]] = []
    before = ""
    for index, character in enumerate(text):
        category = unicodedata.category(character)
        is_letter = character.isalnum() or character == "_"
        is_joiner = category[0] == "M" or category == "Cf"
        if character.isspace() or category == "Cc":
            before = ""
        elif is_joiner and not before:
            # A mark after a blank is not a word.
            continue
        elif is_joiner or is_letter and before == "letter" and not by_letter:
            spans[-1] = (spans[-1][0], index + 1)
        else:
            spans.append((index, index + 1))
            before = "letter" if is_letter else "sign"
    return spans


def _predict(bert: "FineTuned", items: list[Item]) -> list[Item]:
    fields = [name for name in WORD_FIELDS if all(name in item for item in items)]
    if fields:
        found = tag(bert, [value_of(item, fields[0], list) for item in items])
        return [{"prediction": [word.tag for word in words]} for words in found]
    texts = values_of(items, "text")
    return [
        {"prediction": objects(words), "entities": objects(entities_of(text, words))}
        for text, words in zip(texts, tag_texts(bert, texts), strict=True)
    ]


def _sentences(path: epath.Path) -> Iterator[tuple[str, Item]]:
    for sentence in read_file(path, BadRecords()):
        yield sentence.where[0], {"words": sentence.words}


HEAD = Head(
    model="bert_jax.models.task_models:BertForTokenClassification",
    loss="bert_jax.objectives.task_losses:Labels",
    task="ner",
    transformers_class="TokenClassification",
    methods={"tag": tag, "entities": entities, "tag_texts": tag_texts},
    verb=Verb(
        "tag",
        _predict,
        TEXT,
        format=FileFormat("CoNLL", is_conll, _sentences),
        example=("'Ada lives in London.'",),
    ),
)
