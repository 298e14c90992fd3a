"""In-memory stand-ins for the token store and the tokenizer."""

from types import SimpleNamespace

import numpy as np

from bert_jax.batches.stream import StreamSpec
from bert_jax.config import default_config
from bert_jax.store.token_store import PartStarts
from bert_jax.tokenizers.sequence import SequenceTemplate

DEFAULTS = default_config().data
PAD, UNK, CLS, SEP, MASK = range(5)
NUM_SPECIALS = 5


class FakeStore:
    """A token store in memory, which records the positions that are read.

    Args:
      documents: For each document, the lengths of its sentences.
      tokens: The ids of all tokens; by default 5 + the token's position, so that every id
        identifies its position.
      cuts: The documents at which a new part begins.
      sources: The name of the source of each part.
    """

    has_words = False

    def __init__(self, documents, tokens=None, cuts=(), sources=()):
        lengths = np.concatenate([np.asarray(d) for d in documents])
        self.document_starts = np.cumsum([0, *map(len, documents)]).astype(np.int64)
        self.sentence_starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.num_documents, self.num_sentences = len(documents), len(lengths)
        self.num_tokens = int(self.sentence_starts[-1])
        self.tokens = NUM_SPECIALS + np.arange(self.num_tokens) if tokens is None else tokens
        self.num_parts = 1 + len(cuts)
        self.sources = list(sources) or [""] * self.num_parts
        documents = np.array([0, *cuts, self.num_documents])
        sentences = self.document_starts[documents]
        self.starts = PartStarts(documents, sentences, self.sentence_starts[sentences])
        self.read, self.opened = [], []

    def part(self, number):
        self.opened.append(number)
        bounds = (slice(start, stop + 1) for start, stop in (s[number:][:2] for s in self.starts))
        documents, sentences, _ = bounds
        return SimpleNamespace(
            document_starts=self.document_starts[documents] - self.starts.sentences[number],
            sentence_starts=self.sentence_starts[sentences] - self.starts.tokens[number],
        )

    def by_source(self):
        """See `TokenStore.by_source`; for a store of one source."""
        (name,) = set(self.sources)
        return {name: self}

    def fetch(self, spans):
        """See `TokenStore.fetch`."""

    def tokens_at(self, positions):
        assert positions.dtype == np.int64
        self.read.append(positions.ravel())
        return self.tokens[positions].astype(np.int32)

    def sentence_starts_at(self, positions):
        return np.isin(positions, self.sentence_starts)

    def document_of(self, positions):
        sentence = np.searchsorted(self.sentence_starts, positions, side="right") - 1
        return np.searchsorted(self.document_starts, sentence, side="right") - 1


def make_documents(seed=0, num_documents=40, most_sentences=40, mean_length=12):
    """Returns the sentence lengths of varied documents; some have one sentence, some a long one."""
    rng = np.random.default_rng(seed)
    documents = []
    for index in range(num_documents):
        count = 1 if index % 10 == 0 else int(rng.integers(1, most_sentences + 1))
        lengths = 1 + rng.poisson(mean_length, count)
        lengths[rng.random(count) < 0.03] *= 8
        documents.append(lengths)
    return documents


def make_spec(max_seq_length=64, **changes):
    """Returns a spec of single rows with seed 0 and stage 0, with some values changed.

    As in the original programs, sentences are not divided.
    """
    values = {"max_predictions_per_seq": 1, "batch_size": 1, "seed": 0, "stage": 0}
    values["max_sentence_tokens"] = 0
    return StreamSpec.of(DEFAULTS, max_seq_length=max_seq_length, **values | changes)


def make_tokenizer(vocab_size, seed=0):
    """Returns a tokenizer in which two thirds of the vocabulary begin a word."""
    starts = np.random.default_rng(seed).random(vocab_size) < 0.67
    starts[:NUM_SPECIALS] = True
    return SimpleNamespace(
        kind="wordpiece",
        vocab_size=vocab_size,
        ids={},
        word_end="",
        pad_id=PAD,
        unk_id=UNK,
        template=SequenceTemplate(before=(CLS,), between=(SEP,), after=(SEP,)),
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        is_word_start_V=starts,
        begins_word=lambda ids: starts[ids],
        id_to_token=str,
        piece_text=str,
        decode=lambda ids: " ".join(map(str, ids)),
    )
