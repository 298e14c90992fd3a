"""Measures what a model will see of a corpus: sentences, cut tokens, padding, epochs."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from bert_jax.base.batch import NEXT_SENTENCE_FIELDS, SENTENCE_ORDER_FIELDS
from bert_jax.base.progress import empty_table
from bert_jax.batches.packing import pack
from bert_jax.batches.rows.windows import WindowedRows, select_rows
from bert_jax.batches.stream import Stream
from bert_jax.text.named_sources import language_of

(_RANDOM_PAIR_LABELS,), (_ORDER_LABELS,) = NEXT_SENTENCE_FIELDS, SENTENCE_ORDER_FIELDS
_PAIR_NAMES = {
    (_RANDOM_PAIR_LABELS, "0"): "pairs in order",
    (_RANDOM_PAIR_LABELS, "1"): "random pairs",
    (_ORDER_LABELS, "0"): "pairs in order",
    # Pairs of a chunk of one sentence are random, but have this label too.
    (_ORDER_LABELS, "1"): "swapped or random pairs",
    (_ORDER_LABELS, "2"): "random pairs",
}
# Blocks are measured until they have this many tokens.
_SAMPLE_TOKENS = 2_000_000
# The report of a preparation has these keys if tokens were added to the vocabulary.
_PER_WORD = ("tokens_per_word", "tokens_per_word_before")
_ROWS_AT_ONCE = 4096
# If more of the tokens begin a word, whole words are single tokens.
_MAX_WORD_STARTS = 0.98
_MAX_WARNINGS = 3
# The rows that a run prints at its start; its page has all of them.
MAIN_ROWS = (
    "unknown tokens",
    "tokens seen in an epoch",
    "padding",
    "sequences in a row (mean)",
    "epochs of this run",
)


def measure(stream: Stream, num_rows_read: int, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Measures the rows of the stages of one length.

    Statistics of rows and sentences come from a sample of consecutive documents with about two
    million tokens, or from all of a smaller corpus. Random second segments count as seen only if
    they are in the sample.

    Args:
      stream: The stream of one of the stages. Its rows must be made from a token store.
      num_rows_read: The number of rows that the stages read; 0 if there is no run.

    Returns:
      Values that JSON can hold; `_texts` names them. `seen` is the fraction of tokens that are in a
      row of an epoch, `padding` the fraction of positions in rows that are padding. The parts of a
      divided sentence count as sentences. If pairs share rows, `label_fractions` are fractions of
      the pairs.
    """
    rows, spec = stream.rows, stream.spec
    store, options, prepared = rows.store, metadata["options"], metadata.get("report", {})
    sample = _read_sample(rows)
    num_rows = sample.num_pairs
    if sample.pair_lengths:
        sizes = spec.max_seq_length, spec.max_pairs_per_row
        num_rows = len(pack(np.concatenate(sample.pair_lengths), *sizes)[1])
    fraction = sample.num_tokens / store.num_tokens
    rows_per_epoch = max(1, round(num_rows / fraction))
    num_positions = max(1, num_rows * spec.max_seq_length)
    formats = sorted({format for format, *_ in prepared.get("formats", [])})
    languages = ", ".join(dict.fromkeys(map(language_of, filter(None, store.sources))))
    report = {
        "formats": formats or [options["format"]],
        "language": languages or options.get("language", ""),
        "max_seq_length": spec.max_seq_length,
        "documents": int(store.num_documents),
        "sentences": int(store.num_sentences),
        "tokens": int(store.num_tokens),
        "sentences_per_document": _quantiles(sample.document_lengths),
        "tokens_per_sentence": _quantiles(sample.sentence_lengths),
        "tokenizer": rows.tokenizer.kind,
        "unknown": int(store.token_counts[rows.tokenizer.unk_id]) / store.num_tokens,
        "seen": sample.num_seen / sample.num_tokens,
        "padding": (num_rows * spec.max_seq_length - sample.num_real) / num_positions,
        "label_fractions": {
            name: _fractions(np.concatenate(values)) for name, values in sample.labels.items()
        },
        "rows_per_epoch": rows_per_epoch,
        "tokens_per_epoch": round(sample.num_real / fraction),
        "epochs": num_rows_read / rows_per_epoch,
        "sources": rows.sources() if any(store.sources) else {},
        **{key: prepared[key] for key in _PER_WORD if key in prepared},
    }
    if sample.pair_lengths:
        report["pairs_per_row"] = sample.num_pairs / num_rows
    if spec.whole_word_masking and options.get("word_boundaries", "vocabulary") != "spaces":
        begins_word_V = rows.tokenizer.begins_word(np.arange(len(store.token_counts)))
        report["word_starts"] = float(store.token_counts[begins_word_V].sum() / store.num_tokens)
    return report


class _Sample(NamedTuple):
    num_tokens: int
    num_seen: int
    num_pairs: int
    num_real: int  # Tokens in rows, with special ones.
    sentence_lengths: list[np.ndarray]
    document_lengths: list[np.ndarray]
    pair_lengths: list[np.ndarray]  # Empty if pairs do not share rows.
    labels: dict[str, list[np.ndarray]]


def _read_sample(rows: WindowedRows) -> _Sample:
    num_tokens = num_pairs = num_real = 0
    sentence_lengths, document_lengths, pair_lengths = [], [], []
    spans, positions_read, labels = [], [], defaultdict(list)

    def tokens_at(positions: np.ndarray) -> np.ndarray:
        positions_read.append(positions)
        return rows.store.tokens_at(positions)

    reader = rows.reading(tokens_at)
    for block, plan in rows.planned_blocks():
        spans.append(block.sentence_starts[[0, -1]].tolist())
        num_tokens += spans[-1][1] - spans[-1][0]
        sentence_lengths.append(np.diff(block.sentence_starts))
        document_lengths.append(np.diff(block.document_starts))
        num_pairs += len(plan[0])
        if rows.spec.max_pairs_per_row > 1:
            pair_lengths.append(rows.lengths(plan))
        for first in range(0, len(plan[0]), _ROWS_AT_ONCE):
            batch = reader.assemble(select_rows(plan, slice(first, first + _ROWS_AT_ONCE)))
            num_real += int(batch["attention_mask"].sum())
            for name, values in batch.items():
                if values.ndim == 1:
                    labels[name].append(values)
        if num_tokens >= _SAMPLE_TOKENS:
            break
    num_seen = 0
    for start, stop in spans:
        is_seen_T = np.zeros(stop - start, bool)
        for positions in positions_read:
            is_seen_T[positions[(positions >= start) & (positions < stop)] - start] = True
        num_seen += int(is_seen_T.sum())
    lengths = sentence_lengths, document_lengths, pair_lengths
    return _Sample(num_tokens, num_seen, num_pairs, num_real, *lengths, labels)


def warnings(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the most important problems of a run, each with its remedy; at most three.

    Only the stage with the longest rows is checked, because shorter rows are meant to save time.
    """
    report = max(reports, key=lambda report: report["max_seq_length"])
    epochs = sum(report["epochs"] for report in reports)
    median = report["sentences_per_document"]["median"]
    random_fraction = report["label_fractions"].get(_RANDOM_PAIR_LABELS, {}).get("1", 0)
    found = []
    if report["unknown"] > 0.01:
        remedy = (
            "a run without config.init_from and config.data.vocab can train one on this text, with "
            "more tokens (config.model.vocab_size), or as config.data.tokenizer=byte_bpe, which "
            "knows every character; WordPiece knows no word of more than "
            "config.data.max_input_chars_per_word characters"
        )
        if report.get("tokenizer") == "protein":
            remedy = "write proteins in upper case"
        problem = f"{report['unknown']:.1%} of the tokens are unknown to the vocabulary"
        found.append(f"{problem}: {remedy}")
    if report.get("word_starts", 0) > _MAX_WORD_STARTS:
        found.append(
            f"{report['word_starts']:.0%} of the tokens begin a word, so that "
            "config.data.whole_word_masking has no effect: in Chinese, put spaces between the "
            "words and set config.data.word_boundaries=spaces"
        )
    if random_fraction > 0.7 and median < 10:
        sentences = "sentences" if median > 1 else "sentence"
        found.append(
            f"{random_fraction:.0%} of the pairs are random, because half of the documents have at "
            f"most {median:g} {sentences}: join them into longer documents, or "
            "leave next-sentence prediction out (config.data.rows=full_sentences "
            "config.objective.terms=masked_lm config.objective.weights=1)"
        )
    if report["padding"] > 0.4:
        found.append(
            f"{report['padding']:.0%} of the positions in rows are padding, which costs time: set "
            "a larger config.data.max_pairs_per_row, a shorter max_seq_length or, without "
            "next-sentence prediction, config.data.rows=full_sentences"
        )
    repeats = {name: epochs * x["repeats"] for name, x in report.get("sources", {}).items()}
    most = max(repeats, key=repeats.__getitem__, default="")
    if repeats.get(most, epochs) > 100:
        of_source = f" of {most}" if most else ""
        remedy = "a larger config.data.sampling_exponent, " if most else ""
        found.append(
            f"the run repeats the text{of_source} {repeats.get(most, epochs):,.0f} times (BERT: "
            f"40): give it more text, {remedy}or fewer steps (config.train.num_steps)"
        )
    return found[:_MAX_WARNINGS]


def table(reports: Sequence[Mapping[str, Any]], rows: Collection[str] = ()) -> Table:
    """Makes a table of the reports of a run's lengths, with all rows or only `rows`."""
    lengths = (f"rows of {report['max_seq_length']}" for report in reports)
    result = empty_table("What the model sees of the corpus", "", *lengths)
    columns = [_texts(report) for report in reports]
    for name in columns[0]:
        if not rows or name in rows:
            result.add_row(name, *(texts.get(name, "") for texts in columns))
    return result


def _texts(report: Mapping[str, Any]) -> dict[str, str]:
    texts = {
        "format": ", ".join(report["formats"]),
        "rules for sentences": report["language"] or "en, or el in Greek text",
        **{name: f"{report[name]:,}" for name in ("documents", "sentences", "tokens")},
    }
    for name in ("sentences_per_document", "tokens_per_sentence"):
        median, largest = (report[name][key] for key in ("median", "largest"))
        texts[f"{name.replace('_', ' ')} (median, largest)"] = f"{median:,.0f}, {largest:,}"
    if all(key in report for key in _PER_WORD):
        now, before = (report[key] for key in _PER_WORD)
        texts["tokens a word (without added tokens)"] = f"{now:.3f} ({before:.3f})"
    texts["unknown tokens"] = f"{report['unknown']:.2%}"
    texts["tokens seen in an epoch"] = f"{report['seen']:.1%}"
    texts["padding"] = f"{report['padding']:.1%}"
    for field, labels in report["label_fractions"].items():
        for label, fraction in labels.items():
            texts[_PAIR_NAMES.get((field, label), f"{field} {label}")] = f"{fraction:.1%}"
    if "pairs_per_row" in report:
        texts["sequences in a row (mean)"] = f"{report['pairs_per_row']:.2f}"
    texts["tokens in the rows of an epoch"] = f"{report['tokens_per_epoch']:,}"
    texts["rows in an epoch"] = f"{report['rows_per_epoch']:,}"
    if report["epochs"]:
        texts["epochs of this run"] = f"{report['epochs']:,.1f}"
    return texts


def source_table(reports: Sequence[Mapping[str, Any]]) -> Table | None:
    """Makes a table of the sources of a run, with their shares; None if they have no names."""
    sources = reports[0].get("sources")
    if not sources:
        return None
    total, epochs = sum(x["tokens"] for x in sources.values()), sum(r["epochs"] for r in reports)
    table = empty_table(
        "Sources", "source", "tokens", "share of the text", "share of the rows", "times read"
    )
    for name, values in sources.items():
        share = values["tokens"] / total
        table.add_row(
            name,
            f"{values['tokens']:,}",
            f"{share:.2%}",
            f"{share * values['repeats']:.2%}",
            f"{epochs * values['repeats']:,.2f}" if epochs else f"{values['repeats']:,.2f}",
        )
    return table


def _quantiles(parts: Sequence[np.ndarray]) -> dict[str, float]:
    values = np.concatenate(parts)
    return {"median": float(np.median(values)), "largest": int(values.max())}


def _fractions(values: np.ndarray) -> dict[str, float]:
    labels, counts = np.unique(values, return_counts=True)
    return {str(label): float(n / len(values)) for label, n in zip(labels, counts, strict=True)}
