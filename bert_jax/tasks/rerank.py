"""Rerankers: how relevant the candidate documents of a query are."""

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.hashes import mixed, stable_hash
from bert_jax.config.task_sections import RERANK_SCORES
from bert_jax.tasks.beir import read_retrieval
from bert_jax.tasks.candidate_scores import (
    FIRST_PREFIX,
    candidate_scores,
    ranking_of,
    two_stage_scores,
)
from bert_jax.tasks.candidates import Candidates, Columns, candidates_of
from bert_jax.tasks.retrieval import Retrieval, bm25_similarities, nearest
from bert_jax.tasks.scores import Scores
from bert_jax.tasks.table import FILE_NAMES
from bert_jax.tasks.task import VALIDATION_FRACTION, Task
from bert_jax.tasks.token_rows import TokenRows, tokenized
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.tables import read_rows
from bert_jax.tokenizers import Tokenizer

# A document with this label or a higher one is relevant: scores have no grades.
RELEVANT = 0.5
# The largest spread of a teacher's scores whose softmax is above 0 in float32.
MAX_SPREAD = 87


class RankedRows(TokenRows):
    """The pairs of queries with each of their candidates, one after another, which are scored.

    Args:
      candidates: Read once.
      prompt: Is put before each query.
      of_teacher: Whether the loss learns the scores of the candidates, not their labels.

    Attributes:
      labels_R: The label, or the teacher's score, of each pair, float32.
      first_N: The number of the first pair of each query, and that of all pairs at the end.
      num_positives_N: The number of candidates of each query whose labels are above 0.
      is_ranking: Whether the candidates of each query are in the order of an earlier ranking.
    """

    is_ranking = True

    def __init__(
        self,
        candidates: Iterable[Candidates],
        prompt: str,
        tokenizer: Tokenizer,
        max_seq_length: int,
        of_teacher: bool = False,
    ):
        # These are compact: there may be many millions of pairs.
        sizes, num_positives, labels = array("q", [0]), array("q"), array("f")

        def texts() -> Iterator[tuple[str, str]]:
            for row in candidates:
                sizes.append(len(row.documents))
                num_positives.append(sum(label > 0 for label in row.labels))
                labels.extend(row.scores if of_teacher else row.labels)
                self.is_ranking = self.is_ranking and row.places is not None
                yield from ((prompt + row.query, document) for document in row.documents)

        super().__init__(tokenized(texts(), tokenizer, max_seq_length), tokenizer, max_seq_length)
        self.labels_R = np.array(labels, np.float32)
        self.first_N, self.num_positives_N = np.cumsum(sizes), np.array(num_positives)

    @property
    def num_examples(self) -> int:
        return len(self.num_positives_N)

    def by_query(self, values_R: np.ndarray) -> list[np.ndarray]:
        """Divides values of all pairs into those of each query."""
        return np.split(values_R, self.first_N[1:-1])

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some of the pairs, as rows with one candidate each: int32 [n, 1, L]."""
        return {name: x_nxL[:, None] for name, x_nxL in super().take(indices).items()}

    def scores(self, logits_R: np.ndarray) -> Scores:
        """Computes `candidate_scores` and, with FIRST_PREFIX, those of an earlier ranking."""
        relevant = self.by_query(self.labels_R >= RELEVANT)
        found = candidate_scores(map(ranking_of, self.by_query(logits_R), relevant))
        if not self.is_ranking:
            return found
        first = candidate_scores(relevant)
        return found | {f"{FIRST_PREFIX}{name}": value for name, value in first.items()}

    def fingerprint(self) -> str:
        # Padded rows of many candidates may be large.
        digest = hashlib.sha256()
        for x in (self._ids, self._starts, self._num_first_N, self.first_N, self.labels_R):
            digest.update(x)
        for text in self.fingerprint_texts():
            digest.update(text.encode())
        return digest.hexdigest()


class FoundRows(RankedRows):
    """The pairs of queries with the first documents that BM25 finds for them; see `RankedRows`.

    Args:
      depth: The number of documents for each query.
    """

    def __init__(self, data: Retrieval, depth: int, *options: Any):
        self._data, self._depth = data, depth
        self._found = list(nearest(data, bm25_similarities(data), depth))
        candidates = (
            Candidates(
                query,
                [data.documents[number] for number in numbers],
                [float(number in relevant) for number in numbers],
                scores=None,
                places=None,
            )
            for query, numbers, relevant in zip(
                data.queries, self._found, data.relevant, strict=True
            )
        )
        super().__init__(candidates, *options)

    def scores(self, logits_R: np.ndarray) -> Scores:
        return two_stage_scores(self._data, self._found, self.by_query(logits_R), self._depth)

    def fingerprint_texts(self) -> Iterator[str]:
        return map(str, self._data.relevant)


class CandidateRows(RankedRows):
    """The rows of training: queries with C candidates each, of which some may be padding.

    Args:
      num_negatives: The number of negatives that `draw` takes; 0 for all.
      options: The arguments of `RankedRows`.

    Attributes:
      num_negatives_N: The number of candidates of each query whose labels are not above 0.
      num_drawn_N: How many of these `draw` takes.
    """

    def __init__(self, num_negatives: int, *options: Any):
        super().__init__(*options)
        self._num_negatives = num_negatives
        self.num_negatives_N = np.diff(self.first_N) - self.num_positives_N
        self.num_drawn_N = np.minimum(self.num_negatives_N, num_negatives or self.num_negatives_N)

    def __len__(self) -> int:
        return self.num_examples

    def described(self) -> str:
        sizes_N = self.num_positives_N + self.num_drawn_N
        return f"a query has up to {sizes_N.max():,} candidates, {sizes_N.mean():.2f} on average"

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return self.draw(indices, 0, 0)

    def draw(self, indices: np.ndarray, seed: int, step: int) -> dict[str, np.ndarray]:
        """Returns queries with all positives, and with negatives that (seed, step, row) decide.

        Returns:
          The inputs, int32 [n, C, L]; "labels", float32 [n, C], and "mask", bool [n, C], which is
          False for padding: copies of the first candidate of the row.
        """
        shape = len(indices), (self.num_positives_N + self.num_drawn_N).max()
        pairs_nxC, is_own_nxC = np.zeros(shape, np.int64), np.zeros(shape, bool)
        for pairs_C, is_own_C, index in zip(pairs_nxC, is_own_nxC, indices.tolist(), strict=True):
            others = np.arange(self.num_negatives_N[index], dtype=np.uint64)
            if self._num_negatives:
                key = np.uint64(stable_hash("negatives", seed, step, index))
                others = np.argsort(mixed(key ^ others))[: self.num_drawn_N[index]]
            places = *range(self.num_positives_N[index]), *(self.num_positives_N[index] + others)
            is_own_C[: len(places)] = True
            pairs_C[: len(places)] = places
        pairs_nxC += self.first_N[indices][:, None]
        flat = TokenRows.take(self, pairs_nxC.ravel())
        batch = {name: x.reshape(*shape, -1) for name, x in flat.items()}
        return batch | {"labels": self.labels_R[pairs_nxC], "mask": is_own_nxC}


class RerankTask(Task):
    """Relevance of documents to a query; see `Task`. The options are `config.rerank`.

    The rows of "train" are `CandidateRows`; those of all other splits are `RankedRows`.
    """

    head = "reranker"
    metric = "ndcg@10"
    is_scored_before = True
    file_names = FILE_NAMES

    def __init__(self, *args: Any):
        super().__init__(*args)
        own = self._options
        texts = own["query_column"], own["positive_column"], own["negative_columns"]
        self._columns = Columns(*texts, own["label_column"], own["score_column"])
        self._loss = own["loss"]

    def open_sources(self, source: str) -> dict[str, epath.Path]:
        sources = super().open_sources(source)
        if path := self._options["retrieval"]:
            key = "config.rerank.retrieval"
            sources["validation_retrieval"] = files.checked_path(path, key)
        return sources

    def check(self, config: ConfigDict) -> list[str]:
        own, rows, warnings = config.rerank, self.rows("train"), []
        if config.model.num_decoder_layers or config.model.causal:
            raise UserError(
                f"config.init_from is {config.init_from}, which has a decoder, or whose first "
                "token attends to no other; take an encoder"
            )
        num_few = int(np.sum(rows.num_negatives_N < own.num_negatives))
        if num_few > len(rows) / 2:
            warnings.append(
                f"{num_few:,} of {len(rows):,} rows have fewer negatives than "
                f"config.rerank.num_negatives={own.num_negatives}: the rest is padding"
            )
        if own.loss == "kl":
            spread = max(map(np.ptp, rows.by_query(rows.labels_R)))
            if spread / own.temperature > MAX_SPREAD:
                warnings.append(
                    f"a teacher's scores of one query differ by up to {spread:.4g}, and the lowest "
                    "probabilities are 0: set a higher config.rerank.temperature"
                )
        return warnings

    def class_counts(self) -> dict[str, int]:
        if self._loss != "bce":
            return {}
        rows = self.rows("train")
        counts = {"positive": rows.num_positives_N, "negative": rows.num_drawn_N}
        return {name: int(count_N.sum()) for name, count_N in counts.items()}

    def candidates(
        self, source: epath.Path, split: str, bad_rows: BadRecords
    ) -> Iterator[Candidates]:
        """Yields the rows of a file that belong to a split. No query is in two parts of a file."""
        limit = VALIDATION_FRACTION * 2**64
        for row in read_rows(source, (), bad_rows):
            with bad_rows.catching(row.where):
                is_labeled = not split.startswith("test")
                found = candidates_of(row.values, self._columns, is_labeled)
                is_kept = stable_hash("heldout", found.query) >= limit
                if split in self.parts and is_kept != (split == "train"):
                    continue
                if split == "train":
                    self._check_row(found)
                yield found

    def _check_row(self, row: Candidates) -> None:
        """Refuses a row from which the loss learns nothing, or something else."""
        loss = f"config.rerank.loss={self._loss}"
        if not row.documents:
            raise BadRecord("no documents", "there is no document")
        if self._loss in RERANK_SCORES:
            if row.scores is None:
                raise BadRecord("no scores", f"{loss} needs a teacher's scores of all documents")
            if self._loss == "mse" and row.is_difference:
                raise BadRecord("a difference", f"{loss} needs a score of each document")
            if self._loss != "mse" and len(row.documents) < 2:
                raise BadRecord("one document", f"{loss} needs two documents or more")
        elif self._loss == "bce":
            if not all(0 <= label <= 1 for label in row.labels):
                raise BadRecord("not from 0 to 1", f"{loss} needs labels from 0 to 1")
        elif min(row.labels) < 0:
            raise BadRecord("a label below 0", f"{loss} needs labels of 0 or more")
        elif len(set(row.labels)) < 2:
            raise BadRecord("equal labels", f"{loss} needs documents with different labels")

    def read(self, source: epath.Path, split: str, bad_rows: BadRecords) -> RankedRows:
        options = self._options["query_prompt"], self._tokenizer, self._max_seq_length
        if split == "validation_retrieval":
            data = read_retrieval(source, "config.rerank.retrieval")
            return FoundRows(data, self._options["depth"], *options)
        found = self.candidates(source, split, bad_rows)
        if split == "train":
            of_teacher = self._loss in RERANK_SCORES
            rows = CandidateRows(self._options["num_negatives"], found, *options, of_teacher)
        else:
            rows = RankedRows(_joined(found), *options)
        self.check_not_empty(source, split, rows)
        labels_R = rows.labels_R if split == "train" else rows.labels_R >= RELEVANT
        if np.all(labels_R == labels_R[0]) and not split.startswith("test"):
            raise UserError(
                f"{source}: all documents of the {split} split have the same label; take both "
                f"relevant ones (a label of {RELEVANT:g} or more) and others"
            )
        return rows

    def score(self, rows: RankedRows, outputs: dict[str, np.ndarray]) -> Scores:
        return rows.scores(outputs["logits"][:, 0])

    def write_predictions(
        self, rows: RankedRows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes a line for each different query: the logits of its different documents."""
        lines = (json.dumps(x.tolist()) + "\n" for x in rows.by_query(outputs["logits"][:, 0]))
        files.write_whole(path, "".join(lines).encode())

    def predictions_name(self, split: str) -> str:
        return f"{split}_predictions.jsonl"


def _joined(candidates: Iterable[Candidates]) -> Iterator[Candidates]:
    """Joins the rows of each query; yields its different documents in the order of the file."""
    rows: dict[str, list[Candidates]] = {}
    for row in candidates:
        rows.setdefault(row.query, []).append(row)
    for query, of_query in rows.items():
        labels: dict[str, float] = {}
        for row in of_query:
            places = row.places or range(len(row.documents))
            for _, text, label in sorted(zip(places, row.documents, row.labels, strict=True)):
                labels[text] = max(label, labels.get(text, label))
        is_ranking = len(of_query) == 1 and of_query[0].places is not None
        places = list(range(len(labels))) if is_ranking else None
        yield Candidates(query, list(labels), list(labels.values()), None, places)
