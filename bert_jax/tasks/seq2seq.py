"""Sequence to sequence: generating a target text, such as a summary, from a source text."""

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks.table import FILE_NAMES
from bert_jax.tasks.task import Source, Task
from bert_jax.tasks.token_rows import TokenRows, tokenized
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.sentences import split_sentences
from bert_jax.text.tables import read_rows
from bert_jax.tokenizers import Tokenizer

# ROUGE-1, ROUGE-2 and ROUGE-L of Lin 2004, as the package names them.
METRICS = ("rouge1", "rouge2", "rougeL")


class TextPair(NamedTuple):
    """One example.

    Attributes:
      id: The number of the row, for predictions.
      source: The text to read.
      target: The text to generate; None if it is not known.
    """

    id: str
    source: str
    target: str | None


class TextRows(TokenRows):
    """Sequences of single texts: `<s> x </s>`."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, max_seq_length: int):
        self._texts = texts
        rows = tokenized(((text, None) for text in texts), tokenizer, max_seq_length)
        super().__init__(rows, tokenizer, max_seq_length)

    def fingerprint_texts(self) -> Iterator[str]:
        return iter(self._texts)


class Seq2SeqRows(TextRows):
    """The sources of the examples, with their targets; see `TokenRows`.

    Args:
      pairs: The examples. Either all have a target, or none has.
      tokenizer, max_seq_length: See `TokenRows`.
      max_target_length: Longer targets are truncated to this number of tokens.
      lead_sentences: The number of sentences in the baseline.

    Attributes:
      pairs: As given.
      targets: The targets' sequences; None if they are not known.
    """

    def __init__(
        self,
        pairs: Sequence[TextPair],
        tokenizer: Tokenizer,
        max_seq_length: int,
        max_target_length: int,
        lead_sentences: int,
    ):
        self.pairs, self._lead_sentences = pairs, lead_sentences
        self._start_id = tokenizer.sep_id
        super().__init__([pair.source for pair in pairs], tokenizer, max_seq_length)
        targets = [pair.target for pair in pairs if pair.target is not None]
        self.targets = TextRows(targets, tokenizer, max_target_length) if targets else None

    def truncated(self) -> str:
        parts = [("sources", self, "data.max_seq_length")]
        if self.targets:
            parts.append(("targets", self.targets, "seq2seq.max_target_length"))
        return ", ".join(
            f"{rows.num_cut:,} of {len(self):,} {what} are truncated to {rows.max_seq_length} "
            f"tokens (config.{key})"
            for what, rows, key in parts
            if rows.num_cut
        )

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `TokenRows.take`.

        If the targets are known, adds int32 [n, T]: "labels", the targets; "decoder_input_ids", the
        same behind a </s> and without the last token; and "decoder_attention_mask", 0 at padding.
        """
        batch = super().take(indices)
        if self.targets:
            target = self.targets.take(indices)
            shifted_NxT = np.roll(target["input_ids"], 1, axis=1)
            shifted_NxT[:, 0] = self._start_id
            batch |= {
                "labels": target["input_ids"],
                "decoder_input_ids": shifted_NxT,
                "decoder_attention_mask": target["attention_mask"],
            }
        return batch

    def rouge(self, texts: Sequence[str]) -> dict[str, float]:
        """Computes the mean F1 of each of `METRICS` for generated texts, from 0 to 1."""
        scorer = rouge_scorer()
        scores = [scorer.score(p.target, x) for p, x in zip(self.pairs, texts, strict=True)]
        return {name: float(np.mean([s[name].fmeasure for s in scores])) for name in METRICS}

    @functools.cached_property
    def lead_scores(self) -> dict[str, float]:
        """The scores of the first sentences of the sources (See et al. 2017): "lead_rouge1", ..."""
        leads = [
            " ".join(split_sentences(pair.source)[: self._lead_sentences]) for pair in self.pairs
        ]
        return {f"lead_{name}": value for name, value in self.rouge(leads).items()}

    def fingerprint_texts(self) -> Iterator[str]:
        for pair in self.pairs:
            yield from (pair.id, pair.source, pair.target or "")


class Seq2SeqTask(Task):
    """Source and target texts in the columns of the user's own files; see `Task`.

    The options are `config.seq2seq`. Outputs are "generated", int [N, T], the ids of the generated
    texts.
    """

    head = "seq2seq"
    metric = "rougeL"
    in_tfds = False
    file_names = FILE_NAMES

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # A missing package is reported before any training.
        rouge_scorer()

    def read(self, source: Source, split: str, bad_rows: BadRecords) -> Seq2SeqRows:
        columns = [self._options[key] for key in ("source_column", "target_column")]
        # A test file needs no targets, and none are read.
        is_test = split.startswith("test")
        rows = read_rows(source, columns[: 2 - is_test], bad_rows, is_required=is_test)
        pairs = []
        for row in self.part(split, rows):
            with bad_rows.catching(row.where, is_required=is_test):
                texts = [row.values[column] for column in columns[: 2 - is_test]]
                for column, text in zip(columns, texts, strict=False):
                    if not text.strip():
                        raise BadRecord("empty text", f"column {column!r} is empty")
                pairs.append(TextPair(str(row.number), texts[0], None if is_test else texts[1]))
        self.check_not_empty(source, split, pairs)
        return Seq2SeqRows(
            pairs,
            self._tokenizer,
            self._max_seq_length,
            self._options["max_target_length"],
            self._options["lead_sentences"],
        )

    def score(self, rows: Seq2SeqRows, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Computes `Seq2SeqRows.rouge` of the generated texts, and the `lead_scores` beside it."""
        return rows.rouge(self.texts(outputs)) | rows.lead_scores

    def texts(self, outputs: dict[str, np.ndarray]) -> list[str]:
        """Returns the generated texts.

        Raises:
          UserError: The model computed NaN.
        """
        if (outputs["generated"] < 0).any():
            raise UserError("the model computes NaN: its weights are damaged")
        return [self._tokenizer.decode_text(ids_T) for ids_T in outputs["generated"]]

    def write_predictions(
        self, rows: Seq2SeqRows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes JSON lines with the index of each row and the generated text."""
        lines = (
            json.dumps({"index": int(pair.id), "prediction": text}, ensure_ascii=False) + "\n"
            for pair, text in zip(rows.pairs, self.texts(outputs), strict=True)
        )
        files.write_whole(path, "".join(lines).encode())

    def predictions_name(self, split: str) -> str:
        return f"{split}.jsonl"


@functools.cache
def rouge_scorer() -> Any:
    """Returns the scorer of the package rouge-score.

    Raises:
      UserError: The package is not installed.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise UserError(
            "config.task is seq2seq, whose scores need the package rouge-score, which is not "
            "installed: pip install -e '.[rouge]'"
        ) from None
    # As in the authors' own scores (ROUGE-1.5.5 -m), words are compared by their stems.
    return RougeScorer(METRICS, use_stemmer=True)
