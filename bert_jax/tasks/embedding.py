"""Sentence embeddings: an anchor with its positive and negatives, or two texts with a label."""

import functools
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.hashes import stable_hash
from bert_jax.tasks.candidates import NEGATIVE, POSITIVES, texts_of
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

# The losses of pairs with a number, and those that compare pairs with different labels.
NUMBER_LOSSES = ("cosent", "angle", "cosine", "contrastive")
_OF_DIFFERENCES = ("cosent", "angle", "softmax")


class TextTuple(NamedTuple):
    """The anchor and its documents, of which the first is the positive, and any label."""

    texts: Sequence[str]
    label: float | int | None


def _rows(
    texts: Iterable[str], prompt: str, include_prompt: bool, tokenizer: Tokenizer, length: int
) -> Iterator[TokenRow]:
    num_left_out = 0 if include_prompt else tokenizer.prompt_length(prompt, length)
    for row in tokenized(((prompt + text, None) for text in texts), tokenizer, length):
        yield row._replace(num_left_out=num_left_out)


class TupleRows(TokenRows):
    """The tuples of training. Each distinct text is held once.

    Args:
      tuples: All have the same number of texts.
      label_type: np.int32, np.float32, or None without labels.
      include_prompt: See `config.embedding`.

    Attributes:
      num_positives: The number of distinct positives.
      num_documents: The number of documents of a row: its positive and its negatives.
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
        queries: dict[str, int] = {}
        documents: dict[str, int] = {}
        first, others, labels = [], [], []
        for (anchor, *texts), label in tuples:
            first.append(queries.setdefault(anchor, len(queries)))
            others.append([documents.setdefault(text, len(documents)) for text in texts])
            labels.append(label)
        options = tokenizer, max_seq_length
        rows, other_rows = (
            _rows(texts, prompt, include_prompt, *options)
            for texts, prompt in zip((queries, documents), prompts, strict=True)
        )
        super().__init__(rows, *options)
        self.documents = TokenRows(other_rows, *options)
        self.unknown_fraction = max(self.unknown_fraction, self.documents.unknown_fraction)
        self._queries_N, self._documents_NxC = np.array(first), np.array(others)
        self.labels_N = None if label_type is None else np.array(labels, label_type)
        self.num_documents = self._documents_NxC.shape[1]
        self.num_positives = len(np.unique(self._documents_NxC[:, 0]))
        # Equal texts have one number, on whichever side they are.
        numbers: dict[str, int] = {}
        self._query_numbers, self._document_numbers = (
            np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
            for texts in (queries, documents)
        )

    def __len__(self) -> int:
        return len(self._queries_N)

    def described(self) -> str:
        number = self.num_documents
        others = f": its positive and {number - 1:,} negatives" if number > 1 else ""
        return f"each anchor has {number:,} document{'s' * (number > 1)}{others}"

    def truncated(self) -> str:
        return " and ".join(filter(None, (super().truncated(), self.documents.truncated())))

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the fields of the anchors, as any rows, and those of the documents.

        Returns:
          In addition "document_ids" and "document_mask", int32 [n, C, L], for C documents;
          "query_numbers" [n] and "document_numbers" [n, C], in which equal texts have one number;
          and any "labels" [n].
        """
        queries_n, documents_nxC = self._queries_N[indices], self._documents_NxC[indices]
        batch = super().take(queries_n)
        documents = self.documents.take(documents_nxC.ravel())
        for name, field in (("document_ids", "input_ids"), ("document_mask", "attention_mask")):
            batch[name] = documents[field].reshape(*documents_nxC.shape, -1)
        batch["query_numbers"] = self._query_numbers[queries_n]
        batch["document_numbers"] = self._document_numbers[documents_nxC]
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
        num_positives = self.rows("train").num_positives
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
        expected = None
        for row in read_rows(source, needed, bad_rows, **options):
            with bad_rows.catching(row.where):
                of_row = texts_of(row.values, self._negatives(row.values))
                expected = len(of_row) if expected is None else expected
                if len(of_row) != expected:
                    counts = f"{len(of_row)} negatives instead of {expected}"
                    raise BadRecord("number of texts", f"the row has {counts}")
                anchor = row.values[needed[0]]
                of_positives = texts_of(row.values, self._positives(row.values))
                found = dict.fromkeys(of_positives) if positives else [anchor]
                if not found or not all(text.strip() for text in (anchor, *found, *of_row)):
                    raise BadRecord("empty text", "a text is empty")
                label = self._label(row.values) if self._is_labeled else None
                for text in found:
                    yield TextTuple([anchor, text, *of_row], label)

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
        tuples = list(self.tuples(source, bad_rows))
        if split in self.parts:
            # The same positive is never in both parts.
            limit, is_train = VALIDATION_FRACTION * 2**64, split == "train"
            hash_of = functools.partial(stable_hash, "heldout")
            tuples = [row for row in tuples if (hash_of(row.texts[1]) >= limit) == is_train]
        self.check_not_empty(source, split, tuples)
        if split == "train":
            if self._loss in _OF_DIFFERENCES and len({row.label for row in tuples}) < 2:
                raise UserError(
                    f"{source}: all labels are the same, from which config.embedding.loss="
                    f"{self._loss} learns nothing"
                )
            types = {"softmax": np.int32} | dict.fromkeys(NUMBER_LOSSES, np.float32)
            label_type = types.get(self._loss)
            options = self._tokenizer, self._max_seq_length, label_type
            return TupleRows(tuples, self._prompts, *options, self._options["include_prompt"])
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

        def scores(queries_QxD: np.ndarray, texts_TxD: np.ndarray) -> Scores:
            found = retrieval_scores(data, similarities(queries_QxD, texts_TxD, number_N, "cosine"))
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
    for (anchor, *texts), _ in tuples:
        numbers = [documents.setdefault(text, len(documents)) for text in texts]
        relevant.setdefault(anchor, set()).add(numbers[0])
    found = [dict.fromkeys(sorted(positives), 1.0) for positives in relevant.values()]
    return Retrieval(list(documents), list(relevant), found, [-1] * len(found))
