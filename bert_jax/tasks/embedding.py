"""Sentence embeddings: an anchor with its positive and negatives, or two texts with a label."""

import functools
import io
import itertools
import json
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.hashes import stable_hash
from bert_jax.config.task_sections import DISTILLATION, NUMBER_LOSSES, embedding_similarity
from bert_jax.tasks.candidates import NEGATIVE, POSITIVES, Columns, candidates_of, texts_of
from bert_jax.tasks.example_task import as_number
from bert_jax.tasks.retrieval import (
    BASELINE_PREFIX,
    Retrieval,
    bm25_similarities,
    cosine_similarities,
    read_pairs,
    read_retrieval,
    retrieval_scores,
    similarities,
)
from bert_jax.tasks.scores import Scores, regression_scores
from bert_jax.tasks.table import FILE_NAMES
from bert_jax.tasks.task import VALIDATION_FRACTION, Task
from bert_jax.tasks.token_rows import TokenRows, tokenized
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.tables import read_rows
from bert_jax.tokenizers import Tokenizer, TokenRow

# The losses that compare pairs with different labels.
_OF_DIFFERENCES = ("cosent", "angle", "softmax")


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


class TupleRows(TokenRows):
    """The tuples of training. Each distinct text is held once.

    Args:
      tuples: They may have different numbers of texts.
      label_type: np.int32, np.float32, or None without labels.
      include_prompt: See `config.embedding`.

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
        options = tokenizer, max_seq_length
        rows, other_rows = (
            _rows(texts, prompt, include_prompt, *options)
            for texts, prompt in zip(self.sides, prompts, strict=True)
        )
        super().__init__(rows, *options)
        self.documents = TokenRows(other_rows, *options)
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

    def truncated(self) -> str:
        return " and ".join(filter(None, (super().truncated(), self.documents.truncated())))

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
      scores: Computes the scores of queries_QxD and documents_NxD.
      facts: What the scores depend on beside the texts.
      include_prompt: See `config.embedding`.
    """

    def __init__(
        self,
        sides: tuple[Sequence[str], Sequence[str]],
        prompts: tuple[str, str],
        tokenizer: Tokenizer,
        max_seq_length: int,
        scores: Callable[[np.ndarray, np.ndarray], Scores],
        facts: Iterable[Any],
        include_prompt: bool = True,
    ):
        options = tokenizer, max_seq_length
        rows = (
            _rows(texts, prompt, include_prompt, *options)
            for texts, prompt in zip(sides, prompts, strict=True)
        )
        super().__init__(itertools.chain.from_iterable(rows), *options)
        self._num_queries, self._scores, self._facts = len(sides[0]), scores, list(facts)

    @property
    def num_examples(self) -> int:
        return self._num_queries

    def score(self, vectors_MxD: np.ndarray) -> Scores:
        return self._scores(vectors_MxD[: self._num_queries], vectors_MxD[self._num_queries :])

    def fingerprint_texts(self) -> Iterator[str]:
        return map(str, self._facts)


class EmbeddingTask(Task):
    """Vectors for retrieval or similarity; see `Task`. The options are `config.embedding`.

    The rows of "train" are `TupleRows`; those of all other splits are `ScoredRows`.
    """

    head = "embedding"
    is_scored_before = True
    file_names = {split: FILE_NAMES[split] for split in ("train", "validation")}

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._loss = self._options["loss"]
        self._prompts = tuple(self._options[f"{side}_prompt"] for side in ("query", "document"))
        split = next((split for split in self.splits if split != "train"), "validation")
        self.metric = "spearman" if self._is_similarity(split) else "ndcg@10"

    @property
    def _is_labeled(self) -> bool:
        return self._options["loss"] in (*NUMBER_LOSSES, "softmax")

    @property
    def _has_scores(self) -> bool:
        """Whether rows like those of training can be scored.

        Classes are no similarities, and a text is always nearest to itself.
        """
        return self._options["loss"] != "softmax" and bool(self._options["positive_column"])

    def _is_similarity(self, split: str) -> bool:
        """Whether a split is scored by correlations, rather than as retrieval."""
        return split == "validation_sts" or split == "validation" and self._is_labeled

    def open_sources(self, source: str) -> dict[str, epath.Path]:
        sources = super().open_sources(source)
        if not self._has_scores:
            del sources["validation"]
        for name in ("retrieval", "sts"):
            if path := self._options[name]:
                sources[f"validation_{name}"] = files.checked_path(path, f"config.embedding.{name}")
        if len(sources) == 1:
            raise UserError(
                f"config.embedding.loss={self._options['loss']} on such rows needs another data "
                "set for validation: set config.embedding.sts or config.embedding.retrieval"
            )
        return sources

    def check(self, config: ConfigDict) -> list[str]:
        own, model, warnings = config.embedding, config.model, []
        width, batch_size = model.hidden_size, config.train.batch_size
        if model.num_decoder_layers or model.causal and own.pooling == "cls":
            raise UserError(
                f"config.init_from is {config.init_from}, which has a decoder, or whose first "
                "token attends to no other (for this, set config.embedding.pooling=mean)"
            )
        if any(dim > width for dim in own.dims):
            raise UserError(
                f"config.embedding.dims is {own.dims!r}, but the vectors of {config.init_from} "
                f"have {width} values"
            )
        if not {0, width} & {*own.dims}:
            warnings.append(
                f"config.embedding.dims is {own.dims!r}, without 0 or {width}: the loss has no "
                "whole vectors"
            )
        if own.query_prompt != own.document_prompt and (own.sts or own.loss in NUMBER_LOSSES):
            warnings.append(
                "correlations are those of texts without the prompts, as in evaluate --sts"
            )
        rows = self.rows("train")
        if own.loss in DISTILLATION and own.normalize:
            lowest, highest = rows.scores_M.min(), rows.scores_M.max()
            if (highest - lowest) / own.teacher_temperature > 2 / own.temperature:
                warnings.append(
                    f"the scores of the teacher go from {lowest:.3g} to {highest:.3g}, which "
                    "cosines from -1 to 1 cannot follow: set config.embedding.normalize=False"
                )
        num_positives = rows.num_positives
        if own.loss == "mnr" and num_positives < batch_size:
            warnings.append(
                f"config.train.batch_size is {batch_size:,}, but there are only {num_positives:,} "
                "different positives: many rows of a batch have equal texts, which are no negatives"
            )
        return warnings

    def find_labels(self) -> tuple[str, ...]:
        if self._options["loss"] != "softmax" or "train" not in self.sources:
            return ()
        column = self._options["label_column"]
        rows = read_rows(self.sources["train"], self._columns(), self.new_bad_rows())
        return tuple(sorted({row.values[column].strip() for row in rows} - {""}))

    def _columns(self) -> list[str]:
        names = ["anchor_column", "positive_column", *(["label_column"] * self._is_labeled)]
        return [*filter(None, (self._options[name] for name in names))]

    def _positives(self, columns: Iterable[str]) -> list[str]:
        column = self._options["positive_column"]
        usual = [name for name in columns if name in POSITIVES]
        return [*filter(None, usual if column == POSITIVES[0] and usual else [column])]

    def _negatives(self, columns: Iterable[str]) -> list[str]:
        if self._is_labeled or not self._options["positive_column"]:
            return []
        if self._options["negative_columns"]:
            return list(self._options["negative_columns"])
        return sorted(filter(NEGATIVE.fullmatch, columns))

    def tuples(self, source: epath.Path, bad_rows: BadRecords) -> Iterator[TextTuple]:
        """Yields a tuple for each positive of each row."""
        if self._loss in DISTILLATION:
            yield from self._scored_tuples(source, bad_rows)
            return
        # With all columns: those of the documents are not known yet.
        first = next(read_rows(source, (), BadRecords("skip")), None)
        known = first.values if first else {}
        positives, negatives = self._positives(known), self._negatives(known)
        if self._loss == "triplet" and not negatives:
            raise UserError(f"{source} has no column named negative, which the loss triplet needs")
        needed = [
            self._options["anchor_column"],
            *positives[:1],
            *self._options["negative_columns"],
        ]
        needed += [self._options["label_column"]] * self._is_labeled
        options = {
            "optional": [*positives[1:], *negatives],
            "lists": () if self._is_labeled else (*positives, *negatives),
            "class_names": self._loss not in NUMBER_LOSSES,
        }
        for row in read_rows(source, needed, bad_rows, **options):
            with bad_rows.catching(row.where):
                columns = self._negatives(row.values)
                # What is missing (null) in one of several columns is no text.
                of_row = texts_of(row.values, [x for x in columns if row.values[x] != ""])
                if self._loss == "triplet" and not of_row:
                    raise BadRecord("number of texts", "the row has no negative")
                anchor = row.values[needed[0]]
                of_positives = texts_of(row.values, self._positives(row.values))
                found = dict.fromkeys(of_positives) if positives else [anchor]
                if not found or not all(text.strip() for text in (anchor, *found, *of_row)):
                    raise BadRecord("empty text", "a text is empty")
                label = self._label(row.values) if self._is_labeled else None
                for text in found:
                    yield TextTuple([anchor, text, *of_row], label)

    def _scored_tuples(self, source: epath.Path, bad_rows: BadRecords) -> Iterator[TextTuple]:
        """Yields a tuple with the scores of a teacher for each positive of each row."""
        own = self._options
        positive = "" if own["positive_column"] == POSITIVES[0] else own["positive_column"]
        columns = Columns(own["anchor_column"], positive, own["negative_columns"])
        for row in read_rows(source, (), bad_rows):
            with bad_rows.catching(row.where):
                found = candidates_of(row.values, columns)
                if found.scores is None:
                    names = "positive_scores and negative_scores, or scores"
                    detail = f"the loss {self._loss} needs the scores of a teacher ({names})"
                    raise BadRecord("no scores", detail)
                positives = [i for i, label in enumerate(found.labels) if label > 0]
                negatives = [i for i, label in enumerate(found.labels) if label <= 0]
                if not positives or not negatives:
                    detail = f"the loss {self._loss} needs a positive and a negative"
                    raise BadRecord("number of texts", detail)
                for number in positives:
                    chosen = number, *negatives
                    texts = [found.query, *(found.documents[i] for i in chosen)]
                    yield TextTuple(texts, scores=[found.scores[i] for i in chosen])

    def _label(self, values: Mapping[str, str]) -> float | int:
        column = self._options["label_column"]
        text = values[column].strip()
        if self._loss == "softmax":
            if text not in self.labels:
                raise BadRecord("unknown label", f"{column} is {text!r}, which is no label")
            return self.labels.index(text)
        number = as_number(text)
        if number is None:
            raise BadRecord("not a number", f"{column} is {text!r}, not a number")
        number /= self._options["label_divisor"]
        if self._loss == "cosine" and not -1 <= number <= 1:
            advice = "config.embedding.label_divisor=5 divides it by 5"
            raise BadRecord("not a cosine", f"{column} is {text!r}, not from -1 to 1 ({advice})")
        if self._loss == "contrastive" and number not in (0, 1):
            raise BadRecord("not 0 or 1", f"{column} is {text!r}, not 0 or 1")
        return number

    def read(self, source: epath.Path, split: str, bad_rows: BadRecords) -> TokenRows:
        if split == "validation_retrieval":
            skip_own = self._options["skip_own_id"]
            data = read_retrieval(source, "config.embedding.retrieval", skip_own)
            return self._retrieval_rows(data)
        if split == "validation_sts":
            return self._similarity_rows(*read_pairs(source, "config.embedding.sts"))
        if split == "validation" and not self._has_scores:
            raise UserError(
                f"rows with config.embedding.loss={self._loss} have no scores; use evaluate with "
                "--sts or --retrieval"
            )
        tuples = self.tuples(source, bad_rows)
        if split in self.parts:
            # The same positive is never in both parts.
            limit, is_train = VALIDATION_FRACTION * 2**64, split == "train"
            hash_of = functools.partial(stable_hash, "heldout")
            tuples = (row for row in tuples if (hash_of(row.texts[1]) >= limit) == is_train)
        if split == "train":
            types = {"softmax": np.int32} | dict.fromkeys(NUMBER_LOSSES, np.float32)
            options = self._tokenizer, self._max_seq_length, types.get(self._loss)
            rows = TupleRows(tuples, self._prompts, *options, self._options["include_prompt"])
            self.check_not_empty(source, split, rows)
            if self._loss in _OF_DIFFERENCES and np.all(rows.labels_N == rows.labels_N[0]):
                raise UserError(
                    f"{source}: all labels are the same, from which config.embedding.loss="
                    f"{self._loss} learns nothing"
                )
            return rows
        tuples = list(tuples)
        self.check_not_empty(source, split, tuples)
        if not self._is_similarity(split):
            return self._retrieval_rows(_retrieval_of(tuples))
        first, second = zip(*(row.texts for row in tuples), strict=True)
        labels_N = np.array([row.label for row in tuples])
        return self._similarity_rows(first, second, labels_N)

    def _retrieval_rows(self, data: Retrieval) -> ScoredRows:
        @functools.cache
        def baseline() -> float:
            return retrieval_scores(data, bm25_similarities(data))["ndcg@10"]

        texts, number_N = data.distinct()
        similarity = embedding_similarity(self._options)

        def scores(queries_QxD: np.ndarray, texts_TxD: np.ndarray) -> Scores:
            vectors = queries_QxD, texts_TxD
            found = retrieval_scores(data, similarities(*vectors, number_N, similarity))
            return found | {f"{BASELINE_PREFIX}ndcg@10": baseline()}

        options = self._tokenizer, self._max_seq_length, scores, [data.relevant, data.own]
        include_prompt = self._options["include_prompt"]
        return ScoredRows((data.queries, texts), self._prompts, *options, include_prompt)

    def _similarity_rows(
        self, first: Sequence[str], second: Sequence[str], labels_N: np.ndarray
    ) -> ScoredRows:
        def scores(first_NxD: np.ndarray, second_NxD: np.ndarray) -> Scores:
            found = regression_scores(labels_N, cosine_similarities(first_NxD, second_NxD))
            return {name: found[name] for name in ("spearman", "pearson")}

        # Similarity is symmetric: both sides have one prompt or none, as in `evaluate --sts`.
        prompts = self._prompts if len(set(self._prompts)) == 1 else ("", "")
        options = self._tokenizer, self._max_seq_length, scores, labels_N.tolist()
        return ScoredRows((first, second), prompts, *options, self._options["include_prompt"])

    def score(self, rows: ScoredRows, outputs: dict[str, np.ndarray]) -> Scores:
        """Scores the vectors, and with `config.embedding.dims` also those that are cut."""
        vectors_MxD = outputs["embeddings"]
        scores = rows.score(vectors_MxD)
        main = next(iter(scores))
        for dim in self._options["dims"]:
            if 0 < dim < vectors_MxD.shape[1]:
                scores[f"{main}_{dim}"] = rows.score(vectors_MxD[:, :dim])[main]
        return scores

    def write_predictions(
        self, rows: ScoredRows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes the vectors as an array of numpy, those of queries first."""
        stream = io.BytesIO()
        np.save(stream, outputs["embeddings"])
        files.write_whole(path, stream.getvalue())

    def predictions_name(self, split: str) -> str:
        return f"{split}.npy"


def _retrieval_of(tuples: Sequence[TextTuple]) -> Retrieval:
    documents: dict[str, int] = {}
    relevant: dict[str, set[int]] = {}
    for (anchor, *texts), *_ in tuples:
        numbers = [documents.setdefault(text, len(documents)) for text in texts]
        relevant.setdefault(anchor, set()).add(numbers[0])
    found = [dict.fromkeys(sorted(positives), 1.0) for positives in relevant.values()]
    return Retrieval(list(documents), list(relevant), found, [-1] * len(found))
