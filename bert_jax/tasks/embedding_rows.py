"""Rows of sentence embeddings: those of training, and texts whose vectors are scored."""

import itertools
import json
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.base.hashes import stable_hash
from bert_jax.tasks.scores import Scores
from bert_jax.tasks.token_rows import TokenRows, tokenized, truncation
from bert_jax.tasks.vectors import Vectors, compact
from bert_jax.tokenizers import Tokenizer, TokenRow


class TextTuple(NamedTuple):
    """The anchor and its documents, of which the first is the positive.

    Attributes:
      label: The label of a pair, if any.
      scores: The scores of a teacher for the documents, if any.
    """

    texts: Sequence[str]
    label: float | int | None = None
    scores: Sequence[float] = ()


class DistinctTexts:
    """Texts in a temporary file, of which memory holds only 64-bit hashes.

    Iterating yields each distinct text once, in the order in which they were first added.
    """

    def __init__(self):
        self._file, self._hashes = tempfile.TemporaryFile("w+"), array("Q")

    def add(self, text: str) -> None:
        self._file.write(f"{json.dumps(text)}\n")
        self._hashes.append(stable_hash(text))

    def __iter__(self) -> Iterator[str]:
        self._file.seek(0)
        is_first_N = np.zeros(len(self._hashes), bool)
        is_first_N[numbered(self.hashes)[1]] = True
        yield from (json.loads(line) for line in itertools.compress(self._file, is_first_N))

    @property
    def hashes(self) -> np.ndarray:
        """The hashes of all texts, also of those that were added before."""
        return np.array(self._hashes, np.uint64)


def numbered(hashes_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers different values in the order in which they first occur.

    Returns:
      The numbers, int32 [N], and where each of the K values first is, [K].
    """
    _, first_K, which_N = np.unique(hashes_N, return_index=True, return_inverse=True)
    order_K = np.argsort(first_K)
    number_K = np.empty(len(order_K), np.int32)
    number_K[order_K] = np.arange(len(order_K))
    return number_K[which_N], first_K[order_K]


def _rows(
    texts: Iterable[str], prompt: str, include_prompt: bool, tokenizer: Tokenizer, length: int
) -> Iterator[TokenRow]:
    num_left_out = 0 if include_prompt else tokenizer.prompt_length(prompt, length)
    for row in tokenized(((prompt + text, None) for text in texts), tokenizer, length):
        yield row._replace(num_left_out=num_left_out)


def _truncated(
    queries_N: np.ndarray, documents_N: np.ndarray, query_length: int | None, length: int
) -> str:
    """Says how many queries and documents lost tokens; see `truncation`."""
    own = (query_length, "embedding.query_length") if query_length else (length,)
    texts = truncation(queries_N, *own), truncation(documents_N, length)
    return " and ".join(filter(None, texts))


class TupleRows(TokenRows):
    """The tuples of training. Each distinct text is held once.

    Args:
      tuples: They may have different numbers of texts.
      label_type: np.int32, np.float32, or None without labels.
      include_prompt, query_length: See `config.embedding`; queries are otherwise as long as
        documents.

    Attributes:
      queries_N: Which of the distinct anchors each row has.
      documents_M: Which of the distinct documents those of all rows are, row by row.
      scores_M: The scores of a teacher for the documents of all rows; empty without.
      sides: The distinct anchors, which the inherited rows have, and the distinct documents.
      num_positives: The number of distinct positives.
      num_documents: The number of documents of a row, its positive and its negatives; that of the
        row with the most.
    """

    def __init__(
        self,
        tuples: Iterable[TextTuple],
        prompts: tuple[str, str],
        tokenizer: Tokenizer,
        max_seq_length: int,
        label_type: type | None,
        include_prompt: bool = True,
        query_length: int | None = None,
    ):
        queries, documents = self.sides = DistinctTexts(), DistinctTexts()
        counts, labels, scores = array("i", [0]), array("d"), array("f")
        for (anchor, *texts), label, of_texts in tuples:
            queries.add(anchor)
            for text in texts:
                documents.add(text)
            counts.append(len(texts))
            scores.extend(of_texts)
            if label_type is not None:
                labels.append(label)
        lengths = query_length or max_seq_length, max_seq_length
        rows, other_rows = (
            _rows(texts, prompt, include_prompt, tokenizer, length)
            for texts, prompt, length in zip(self.sides, prompts, lengths, strict=True)
        )
        super().__init__(rows, tokenizer, lengths[0])
        self._query_length = query_length
        self.documents = TokenRows(other_rows, tokenizer, max_seq_length)
        self.unknown_fraction = max(self.unknown_fraction, self.documents.unknown_fraction)
        self.queries_N, first_queries = numbered(queries.hashes)
        # The documents of row i are documents_M[first[i] : first[i + 1]].
        self.documents_M, first_documents = numbered(documents.hashes)
        self._first_documents = np.cumsum(counts, dtype=np.int64)
        self.scores_M = np.array(scores, np.float32)
        self.labels_N = None if label_type is None else np.array(labels, label_type)
        self.num_documents = max(counts)
        self.num_positives = len(np.unique(self.documents_M[self._first_documents[:-1]]))
        # Equal texts have one number, on whichever side they are.
        distinct = queries.hashes[first_queries], documents.hashes[first_documents]
        numbers, _ = numbered(np.concatenate(distinct))
        self._query_numbers, self._document_numbers = np.split(numbers, [len(first_queries)])

    def __len__(self) -> int:
        return len(self.queries_N)

    def described(self) -> str:
        number, mean = self.num_documents, len(self.documents_M) / len(self)
        others = f": its positive and {number - 1:,} negatives" if number > 1 else ""
        if mean < number:
            return f"each anchor has up to {number:,} documents{others}; {mean:.2f} on average"
        return f"each anchor has {number:,} document{'s' * (number > 1)}{others}"

    @property
    def score_spread(self) -> float:
        """The largest difference between a teacher's scores of a row."""
        firsts = self._first_documents[:-1]
        highest, lowest = (x.reduceat(self.scores_M, firsts) for x in (np.maximum, np.minimum))
        return float((highest - lowest).max())

    def truncated(self) -> str:
        is_cut = self.is_cut_N, self.documents.is_cut_N
        return _truncated(*is_cut, self._query_length, self.documents.max_seq_length)

    def places(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the documents of rows are in `documents_M`, and whether they exist: [n, C].

        The positive stands in the place of a missing document, because the encoder needs a text.
        """
        first_nx1 = self._first_documents[indices, None]
        at_nxC = np.arange(self.num_documents) + np.zeros_like(first_nx1)
        is_document_nxC = at_nxC < self._first_documents[indices + 1, None] - first_nx1
        return first_nx1 + np.where(is_document_nxC, at_nxC, 0), is_document_nxC

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the fields of the anchors, as any rows, and those of the documents.

        Returns:
          In addition "document_ids" and "document_mask", int32 [n, C, L], for C documents;
          "query_numbers" [n] and "document_numbers" [n, C], in which equal texts have one number;
          and any "labels" [n], or [n, C] of a teacher. Where a row has fewer documents, their
          number is -1.
        """
        place_nxC, is_document_nxC = self.places(indices)
        queries_n, documents_nxC = self.queries_N[indices], self.documents_M[place_nxC]
        batch = super().take(queries_n)
        documents = self.documents.take(documents_nxC.ravel())
        for name, field in (("document_ids", "input_ids"), ("document_mask", "attention_mask")):
            batch[name] = documents[field].reshape(*documents_nxC.shape, -1)
        batch["query_numbers"] = self._query_numbers[queries_n]
        numbers_nxC = self._document_numbers[documents_nxC]
        batch["document_numbers"] = np.where(is_document_nxC, numbers_nxC, np.int32(-1))
        if len(self.scores_M):
            scores_nxC = np.where(is_document_nxC, self.scores_M[place_nxC], np.float32(0))
            return batch | {"labels": scores_nxC}
        return batch if self.labels_N is None else batch | {"labels": self.labels_N[indices]}


class ScoredRows(TokenRows):
    """Texts whose vectors are scored: first all queries, then all documents.

    Args:
      scores: Computes the scores of the vectors of queries and of documents.
      facts: What the scores depend on beside the texts.
      include_prompt, query_length: See `TupleRows`.
      kind: See `config.embedding`. Unless it is "dense", a batch has only queries or only
        documents, and a batch of queries has a field "is_query".
    """

    def __init__(
        self,
        sides: tuple[Sequence[str], Sequence[str]],
        prompts: tuple[str, str],
        tokenizer: Tokenizer,
        max_seq_length: int,
        scores: Callable[[Vectors, Vectors], Scores],
        facts: Iterable[Any],
        include_prompt: bool = True,
        query_length: int | None = None,
        kind: str = "dense",
    ):
        lengths = query_length or max_seq_length, max_seq_length
        rows = (
            _rows(texts, prompt, include_prompt, tokenizer, length)
            for texts, prompt, length in zip(sides, prompts, lengths, strict=True)
        )
        super().__init__(itertools.chain.from_iterable(rows), tokenizer, max(lengths))
        self._num_queries, self._scores, self._facts = len(sides[0]), scores, list(facts)
        self._kind, self._query_length, self._length = kind, query_length, max_seq_length

    @property
    def num_examples(self) -> int:
        return self._num_queries

    @property
    def parts(self) -> Sequence[range]:
        if self._kind == "dense":
            return super().parts
        return range(self._num_queries), range(self._num_queries, len(self))

    def truncated(self) -> str:
        is_cut = np.split(self.is_cut_N, [self._num_queries])
        return _truncated(*is_cut, self._query_length, self._length)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        batch = super().take(indices)
        if self._kind == "dense" or indices[0] >= self._num_queries:
            return batch
        return batch | {"is_query": np.ones(len(indices), bool)}

    def compact(self, outputs: dict[str, np.ndarray], vocab_size: int) -> dict[str, Any]:
        return {"embeddings": compact(outputs, self._kind, vocab_size)}

    def score(self, vectors: Vectors) -> Scores:
        return self._scores(vectors[: self._num_queries], vectors[self._num_queries :])

    def fingerprint_texts(self) -> Iterator[str]:
        return map(str, self._facts)
