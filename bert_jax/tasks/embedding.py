"""Sentence embeddings: an anchor with its positive and negatives, or two texts with a label."""

import functools
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.hashes import stable_hash
from bert_jax.base.progress import say
from bert_jax.config.task_sections import (
    DISTILLATION,
    NUMBER_LOSSES,
    embedding_similarity,
    values_of_sets,
)
from bert_jax.tasks.beir import read_retrieval
from bert_jax.tasks.candidates import DOCUMENTS, NUMBERS, Columns, candidates_of
from bert_jax.tasks.embedding_rows import ScoredRows, TextTuple, TupleRows
from bert_jax.tasks.example_task import as_number
from bert_jax.tasks.mixed_rows import MixedRows
from bert_jax.tasks.rerank import MAX_SPREAD
from bert_jax.tasks.retrieval import (
    BASELINE_PREFIX,
    Retrieval,
    bm25_similarities,
    cosine_similarities,
    read_pairs,
    retrieval_scores,
    similarities,
)
from bert_jax.tasks.scores import Scores, regression_scores
from bert_jax.tasks.table import FILE_NAMES
from bert_jax.tasks.task import VALIDATION_FRACTION, Task, find_files
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.tasks.vectors import Vectors, active_dims, save_npz
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.tables import read_rows

# Sparse vectors with fewer zeros have no use.
_LEAST_SPARSITY = 0.9
# The losses that compare pairs with different labels.
_OF_DIFFERENCES = ("cosent", "angle", "softmax")


class EmbeddingTask(Task):
    """Vectors for retrieval or similarity; see `Task`. The options are `config.embedding`.

    The rows of "train" are `TupleRows`, or `MixedRows` of several data sets; those of all other
    splits are `ScoredRows`.
    """

    # The training file of each data set by its name; empty if there is only one.
    _sets: Mapping[str, epath.Path] = {}
    head = "embedding"
    is_scored_before = True
    file_names = {split: FILE_NAMES[split] for split in ("train", "validation")}

    def __init__(self, *args: Any):
        super().__init__(*args)
        if self._sets:
            self.parts = ()
        self._kind = self._options["kind"]
        # The others have one length for both sides.
        is_multiple = self._kind == "multi_vector"
        self._query_length = self._options["query_length"] if is_multiple else None
        self._loss = self._options["loss"]
        split = next((split for split in self.splits if split != "train"), "validation")
        self.metric = "spearman" if self._is_similarity(split) else "ndcg@10"

    @classmethod
    def head_of(cls, config: ConfigDict) -> str:
        kind = config.embedding.kind
        return cls.head if kind == "dense" else kind

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
        own = split not in ("validation_retrieval", "validation_sts") and self._is_labeled
        return split == "validation_sts" or own

    def open_sources(self, source: str) -> dict[str, epath.Path]:
        named = re.findall(r"(?:^|,)\s*((?:train|validation)_\w+)\s*=", source)
        sources = find_files(source, {**self.file_names, **dict.fromkeys(named, ())})
        self._sets = {
            split.removeprefix("train_"): sources.pop(split)
            for split in named
            if split.startswith("train")
        }
        if self._sets:
            sources = self._sources_of_sets(source, sources)
        if not self._has_scores:
            sources = {split: path for split, path in sources.items() if split == "train"}
        for name in ("retrieval", "sts"):
            if path := self._options[name]:
                sources[f"validation_{name}"] = files.checked_path(path, f"config.embedding.{name}")
        if len(sources) == 1:
            raise UserError(
                f"config.embedding.loss={self._options['loss']} on such rows needs another data "
                "set for validation: set config.embedding.sts or config.embedding.retrieval"
            )
        return sources

    def _sources_of_sets(
        self, source: str, sources: dict[str, epath.Path]
    ) -> dict[str, epath.Path]:
        """Returns the splits of several data sets, whose own splits are named after them."""
        sets = self._sets
        if "train" in sources or sets.keys() & {"retrieval", "sts"}:
            raise UserError(
                f"config.data.input is {source}; of several data sets, each must be named as in "
                "train_NAME=FILE, and not retrieval or sts"
            )
        if any(sources["validation"] is path for path in sets.values()):
            del sources["validation"]
        # Without any, a tenth of each is held out.
        own = {f"validation_{name}": path for name, path in sets.items()}
        return {"train": next(iter(sets.values()))} | (sources or own)

    def _of_set(self, key: str, name: str) -> str | None:
        """Returns the value of a data set in a key such as `embedding.set_weights`."""
        if not name:
            return None
        found: dict[str, str] = {}
        for known, value in values_of_sets(self._options[key]):
            if known not in self._sets or known in found:
                raise UserError(
                    f"config.embedding.{key} has {known}={value!r}; each must be NAME=VALUE with a "
                    f"different data set out of {', '.join(self._sets)}"
                )
            found[known] = value
        return found.get(name)

    def _prompts(self, name: str = "") -> tuple[str, str]:
        """Returns the prompts of queries and documents, which a data set may have of its own."""
        sides = "query_prompt", "document_prompt"
        own = (self._of_set(f"{side}s", name) for side in sides)
        return tuple(
            self._options[side] if prompt is None else prompt
            for side, prompt in zip(sides, own, strict=True)
        )

    def check(self, config: ConfigDict) -> list[str]:
        own, model, warnings = config.embedding, config.model, []
        width, batch_size = model.hidden_size, config.train.batch_size
        if model.num_decoder_layers or model.causal and own.pooling == "cls":
            raise UserError(
                f"config.init_from is {config.init_from}, which has a decoder, or whose first "
                "token attends to no other (for this, set config.embedding.pooling=mean)"
            )
        if self._query_length and self._query_length > model.max_position_embeddings:
            raise UserError(
                f"config.embedding.query_length is {self._query_length}, longer than the "
                f"{model.max_position_embeddings} positions of {config.init_from}"
            )
        if self._query_length and own.expansion != "none":
            if self._tokenizer.mask_id >= model.vocab_size:
                raise UserError(
                    f"config.embedding.expansion is {own.expansion}, but {config.init_from} has "
                    "no mask; set it to none"
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
        if isinstance(rows, MixedRows):
            # Refuses a set that is smaller than a batch.
            rows.num_batches(batch_size)
        for name, of_set in rows.sets.items() if isinstance(rows, MixedRows) else [("", rows)]:
            where = f" in {name}" if name else ""
            if own.loss in DISTILLATION and embedding_similarity(own) == "cosine":
                lowest, highest = of_set.scores_M.min(), of_set.scores_M.max()
                if (highest - lowest) / own.teacher_temperature > 2 / own.temperature:
                    warnings.append(
                        f"the scores of the teacher{where} go from {lowest:.3g} to {highest:.3g}, "
                        "which cosines from -1 to 1 cannot follow: set "
                        "config.embedding.normalize=False"
                    )
            if own.loss == "kl" and of_set.score_spread / own.teacher_temperature > MAX_SPREAD:
                warnings.append(
                    f"the scores of the teacher{where} differ by up to {of_set.score_spread:.4g} "
                    "in a row, and the lowest probabilities are 0: set a higher "
                    "config.embedding.teacher_temperature"
                )
            if own.loss == "mnr" and of_set.num_positives < batch_size:
                warnings.append(
                    f"config.train.batch_size is {batch_size:,}, but there are only "
                    f"{of_set.num_positives:,} different positives{where}: many rows of a batch "
                    "have equal texts, which are no negatives"
                )
        return warnings

    def find_labels(self) -> tuple[str, ...]:
        if self._options["loss"] != "softmax" or "train" not in self.sources:
            return ()
        column = self._options["label_column"]
        bad_rows, labels = self.new_bad_rows(), set()
        for source in self._sets.values() or [self.sources["train"]]:
            rows = read_rows(source, self._columns(), bad_rows)
            labels |= {row.values[column].strip() for row in rows}
        return tuple(sorted(labels - {""}))

    def _columns(self) -> list[str]:
        names = ["anchor_column", "positive_column", *(["label_column"] * self._is_labeled)]
        return [*filter(None, (self._options[name] for name in names))]

    def tuples(self, source: epath.Path, split: str, bad_rows: BadRecords) -> Iterator[TextTuple]:
        """Yields a tuple for each positive of each row."""
        # Rankings are scored without negatives and without the scores of a teacher.
        loss = self._loss if split == "train" else "mnr"
        is_pair = self._is_labeled or not self._options["positive_column"]
        needed = self._columns() if is_pair else ()
        class_names = self._loss not in NUMBER_LOSSES
        for row in read_rows(source, needed, bad_rows, class_names=class_names):
            with bad_rows.catching(row.where):
                yield from [self._pair(row.values)] if is_pair else self._triples(row.values, loss)

    def _pair(self, values: Mapping[str, str]) -> TextTuple:
        anchor, positive = self._options["anchor_column"], self._options["positive_column"]
        texts = [values[anchor], values[positive or anchor]]
        if not all(text.strip() for text in texts):
            raise BadRecord("empty text", "a text is empty")
        return TextTuple(texts, self._label(values) if self._is_labeled else None)

    def _triples(self, values: Mapping[str, Any], loss: str) -> Iterator[TextTuple]:
        """Yields each positive with all negatives and, if the loss has them, their scores."""
        own = self._options
        # Other names than the default are no usual ones.
        query, positive = (
            "" if own[key] == default else own[key]
            for key, default in (("anchor_column", "anchor"), ("positive_column", "positive"))
        )
        # The labels of a list of documents say which are positives.
        if loss not in DISTILLATION and not any(name in values for name in DOCUMENTS):
            values = {name: value for name, value in values.items() if name not in NUMBERS}
        found = candidates_of(values, Columns(query, positive, own["negative_columns"]))
        if loss in DISTILLATION and found.scores is None:
            names = "positive_scores and negative_scores, or scores"
            raise BadRecord("no scores", f"the loss {loss} needs the scores of a teacher ({names})")
        # Equal positives make one row.
        positives = {text: i for i, text in enumerate(found.documents) if found.labels[i] > 0}
        negatives = [i for i, label in enumerate(found.labels) if label <= 0]
        if not positives or not negatives and loss != "mnr":
            needed = "a positive" if loss == "mnr" else "a positive and a negative"
            raise BadRecord("number of texts", f"the loss {loss} needs {needed}")
        for number in positives.values():
            chosen = [number, *negatives]
            texts = [found.query, *(found.documents[i] for i in chosen)]
            scores = [found.scores[i] for i in chosen] if loss in DISTILLATION else ()
            yield TextTuple(texts, scores=scores)

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
            return self._retrieval_rows(data, self._prompts())
        if split == "validation_sts":
            pairs = read_pairs(source, "config.embedding.sts")
            return self._similarity_rows(*pairs, self._prompts())
        name = split.partition("_")[2]
        if split == "validation" and not self._has_scores:
            raise UserError(
                f"rows with config.embedding.loss={self._loss} have no scores; use evaluate with "
                "--sts or --retrieval"
            )
        if split == "train" and self._sets:
            sets = {
                name: self._training_rows(path, name, bad_rows) for name, path in self._sets.items()
            }
            return MixedRows(sets, self._weights())
        if split == "train":
            return self._training_rows(source, "", bad_rows)
        tuples = list(self._part(source, split, name, bad_rows))
        self.check_not_empty(source, split, tuples)
        if not self._is_similarity(split):
            return self._retrieval_rows(_retrieval_of(tuples), self._prompts(name))
        first, second = zip(*(row.texts for row in tuples), strict=True)
        labels_N = np.array([row.label for row in tuples])
        return self._similarity_rows(first, second, labels_N, self._prompts(name))

    def _part(
        self, source: epath.Path, split: str, name: str, bad_rows: BadRecords
    ) -> Iterator[TextTuple]:
        """Yields the tuples of a file that belong to a split, of a data set if it has a name."""
        tuples, is_train = self.tuples(source, split, bad_rows), split == "train"
        own = self.sources.get(f"validation_{name}")
        is_shared = own is not None and own is self._sets.get(name)
        if split not in self.parts and not is_shared:
            return tuples
        # The same positive is never in both parts.
        limit, hash_of = VALIDATION_FRACTION * 2**64, functools.partial(stable_hash, "heldout")
        return (row for row in tuples if (hash_of(row.texts[1]) >= limit) == is_train)

    def _training_rows(self, source: epath.Path, name: str, bad_rows: BadRecords) -> TupleRows:
        types = {"softmax": np.int32} | dict.fromkeys(NUMBER_LOSSES, np.float32)
        rows = TupleRows(
            self._part(source, "train", name, bad_rows),
            self._prompts(name),
            self._tokenizer,
            self._max_seq_length,
            types.get(self._loss),
            include_prompt=self._options["include_prompt"],
            query_length=self._query_length,
        )
        self.check_not_empty(source, "train", rows)
        if self._loss in _OF_DIFFERENCES and np.all(rows.labels_N == rows.labels_N[0]):
            raise UserError(
                f"{source}: all labels are the same, from which config.embedding.loss="
                f"{self._loss} learns nothing"
            )
        return rows

    def _weights(self) -> dict[str, float]:
        """Returns the weight of each data set; empty if these are their numbers of rows."""
        texts = {name: self._of_set("set_weights", name) for name in self._sets}
        weights = {name: as_number(text or "") for name, text in texts.items()}
        if not self._options["set_weights"]:
            return {}
        if any(weight is None or weight <= 0 for weight in weights.values()):
            raise UserError(
                f"config.embedding.set_weights is {self._options['set_weights']!r}; each of the "
                f"data sets {', '.join(weights)} must have a number above 0"
            )
        return weights

    def _retrieval_rows(self, data: Retrieval, prompts: tuple[str, str]) -> ScoredRows:
        @functools.cache
        def baseline() -> float:
            return retrieval_scores(data, bm25_similarities(data))["ndcg@10"]

        texts, number_N = data.distinct()
        similarity = embedding_similarity(self._options)

        def scores(*vectors: Vectors) -> Scores:
            found = retrieval_scores(data, similarities(*vectors, number_N, similarity))
            if self._kind == "sparse":
                found |= active_dims(*vectors)
                if not found["corpus_active_dims"]:
                    say(
                        "warning: all vectors of documents are zero and no longer have a "
                        "gradient: config.embedding.document_flops is too high"
                    )
            return found | {f"{BASELINE_PREFIX}ndcg@10": baseline()}

        return ScoredRows(
            (data.queries, texts),
            prompts,
            self._tokenizer,
            self._max_seq_length,
            scores,
            [data.relevant, data.own],
            include_prompt=self._options["include_prompt"],
            query_length=self._query_length,
            kind=self._kind,
        )

    def _similarity_rows(
        self,
        first: Sequence[str],
        second: Sequence[str],
        labels_N: np.ndarray,
        prompts: tuple[str, str],
    ) -> ScoredRows:
        def scores(first_NxD: np.ndarray, second_NxD: np.ndarray) -> Scores:
            found = regression_scores(labels_N, cosine_similarities(first_NxD, second_NxD))
            return {name: found[name] for name in ("spearman", "pearson")}

        # Similarity is symmetric: both sides have one prompt or none, as in `evaluate --sts`.
        prompts = prompts if len(set(prompts)) == 1 else ("", "")
        options = self._tokenizer, self._max_seq_length, scores, labels_N.tolist()
        return ScoredRows((first, second), prompts, *options, self._options["include_prompt"])

    def score(self, rows: ScoredRows, outputs: dict[str, np.ndarray]) -> Scores:
        """Scores the vectors, and with `config.embedding.dims` also those that are cut."""
        vectors = outputs["embeddings"]
        scores = rows.score(vectors)
        main = next(iter(scores))
        for dim in self._options["dims"]:
            if 0 < dim < vectors.shape[1]:
                scores[f"{main}_{dim}"] = rows.score(vectors[:, :dim])[main]
        return scores

    def warnings_of(self, scores: Scores) -> list[str]:
        if scores.get("corpus_sparsity_ratio", 1) > _LEAST_SPARSITY:
            return []
        number = scores["corpus_active_dims"]
        return [
            f"the vectors of documents have {number:,.0f} active dimensions, more than a tenth of "
            "the vocabulary: config.embedding.document_flops is too low, or there were too few "
            "steps"
        ]

    def write_predictions(
        self, rows: ScoredRows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes the vectors, those of queries first: an array of numpy, or see `save_npz`."""
        stream, vectors = io.BytesIO(), outputs["embeddings"]
        if self._kind == "dense":
            np.save(stream, vectors)
        else:
            save_npz(stream, vectors)
        files.write_whole(path, stream.getvalue())

    def predictions_name(self, split: str) -> str:
        return f"{split}.{'npy' if self._kind == 'dense' else 'npz'}"


def _retrieval_of(tuples: Sequence[TextTuple]) -> Retrieval:
    documents: dict[str, int] = {}
    relevant: dict[str, set[int]] = {}
    for (anchor, *texts), *_ in tuples:
        numbers = [documents.setdefault(text, len(documents)) for text in texts]
        relevant.setdefault(anchor, set()).add(numbers[0])
    found = [dict.fromkeys(sorted(positives), 1.0) for positives in relevant.values()]
    return Retrieval(list(documents), list(relevant), found, [-1] * len(found))
