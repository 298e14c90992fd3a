"""The corpus report: shares counted by hand, and the problems that it names."""

import re

import numpy as np
import pytest
from rich.console import Console

from bert_jax.batches import corpus_report
from bert_jax.batches.stream import Stream
from tests.batches.fakes import NUM_SPECIALS, UNK, FakeStore, make_spec, make_tokenizer

VOCAB_SIZE = 50


def report_of(documents, num_steps=6, token=NUM_SPECIALS, **spec):
    """Returns the report on documents, each given by the lengths of its sentences."""
    total = sum(map(sum, documents))
    tokens = np.full(total, token)
    tokens[:3] = UNK
    store = FakeStore([np.array(lengths) for lengths in documents], tokens)
    store.token_counts = np.bincount(tokens, minlength=VOCAB_SIZE)
    values = {"max_seq_length": 16, "batch_size": 2, "short_seq_prob": 0.0} | spec
    stream = Stream(store, make_tokenizer(VOCAB_SIZE), make_spec(**values))
    metadata = {"options": {"format": "auto"}, "report": {"formats": [["jsonl", "its name", 3]]}}
    return corpus_report.measure(stream, num_steps * stream.spec.batch_size, metadata)


def test_shares_are_those_counted_by_hand():
    # Rows have room for 14 tokens: 5 + 5 of the first document, 14 of the 40, and the last 5.
    report = report_of([[5, 5], [40, 5]], rows="segments")
    assert {name: report[name] for name in ("documents", "sentences", "tokens")} == {
        "documents": 2,
        "sentences": 4,
        "tokens": 55,
    }
    assert report["seen"] == pytest.approx(29 / 55)
    assert report["unknown"] == pytest.approx(3 / 55)
    assert report["padding"] == pytest.approx(13 / 48)
    assert report["rows_per_epoch"] == 3 and report["tokens_per_epoch"] == 35
    assert report["epochs"] == 4
    assert report["tokens_per_sentence"] == {"median": 5, "largest": 40}
    assert report["label_fractions"] == {}


def test_segments_that_share_rows():
    """Segments of 7, 12, 4 and 7 tokens with [CLS] and [SEP]: 12 + 4, and 7 + 7."""
    report = report_of([[5], [10], [2], [5]], rows="segments", max_pairs_per_row=4)
    assert report["pairs_per_row"] == 2
    assert report["padding"] == pytest.approx(2 / 32)
    assert report["rows_per_epoch"] == 2 and report["tokens_per_epoch"] == 30
    assert report["epochs"] == 6
    console = Console(width=100, record=True)
    console.print(corpus_report.table([report]))
    assert re.search(r"sequences in a row \(mean\) .* 2.00", console.export_text())
    assert "pairs_per_row" not in report_of([[5], [10]], rows="segments")


def test_documents_that_share_rows():
    """Pieces of 16, 16, 13, 3 and 3 tokens with [CLS] and [SEP]: the last three fit in two rows."""
    report = report_of([[30, 9], [1], [1]], rows="fitted_documents", max_pairs_per_row=4)
    assert report["seen"] == 1 and report["pairs_per_row"] == 5 / 4
    assert report["padding"] == pytest.approx((64 - 51) / 64)


def test_labels_of_pairs():
    report = report_of([[4] * 200, [4] * 200])
    fractions = report["label_fractions"]["next_sentence_labels"]
    assert fractions["0"] + fractions["1"] == pytest.approx(1) and 0.3 < fractions["1"] < 0.7
    assert report["seen"] > 0.8


def test_all_text_is_seen_if_rows_are_packed():
    assert report_of([[5, 6, 7], [3, 4] * 9], rows="full_sentences")["seen"] == 1


def test_a_sample_stands_for_the_corpus(monkeypatch):
    documents = [[3, 4, 5] * 10] * 64
    whole = report_of(documents, rows="segments", shuffle_sentences=64)
    monkeypatch.setattr(corpus_report, "_SAMPLE_TOKENS", 1000)
    part = report_of(documents, rows="segments", shuffle_sentences=64)
    for name in ("rows_per_epoch", "tokens_per_epoch", "seen", "padding"):
        assert part[name] == pytest.approx(whole[name], rel=0.05)


@pytest.mark.parametrize(
    "documents, rows, message",
    [
        ([[5]] * 40, "pairs", "100% of the pairs are random, because half of the documents have"),
        ([[3]] * 40, "segments", "69% of the positions in rows are padding"),
        ([[6, 7]], "segments", r"23.1% of the tokens are unknown to the vocabulary"),
    ],
)
def test_problems_are_named(documents, rows, message):
    found = corpus_report.warnings([report_of(documents, rows=rows)])
    assert [text for text in found if re.match(message, text)], found


def test_unknown_letters_of_proteins_have_their_own_remedy():
    report = report_of([[6, 7]], rows="segments") | {"tokenizer": "protein"}
    (found,) = (text for text in corpus_report.warnings([report]) if "unknown" in text)
    assert found.endswith("unknown to the vocabulary: write proteins in upper case")


@pytest.mark.parametrize("begins_word", [True, False])
def test_whole_words_of_single_tokens_are_named(begins_word):
    token = make_tokenizer(VOCAB_SIZE).is_word_start_V[NUM_SPECIALS:].tolist().index(begins_word)
    options = {"rows": "segments", "token": NUM_SPECIALS + token}
    report = report_of([[50] * 20], whole_word_masking=True, **options)
    found = corpus_report.warnings([report])
    assert any("whole_word_masking has no effect" in text for text in found) == begins_word
    assert "word_starts" not in report_of([[50] * 20], **options)


def test_good_text_has_no_problem_and_the_table_shows_every_stage():
    documents = [[4, 5, 4, 5, 4] * 40] * 4
    reports = [report_of(documents, max_seq_length=length) for length in (16, 32)]
    assert corpus_report.warnings(reports) == []
    console = Console(width=100, record=True)
    console.print(corpus_report.table(reports))
    text = console.export_text()
    assert "rows of 16" in text and "rows of 32" in text and "tokens seen in an epoch" in text
    assert "jsonl" in text and "el in Greek text" in text and "random pairs" in text
    short = corpus_report.table(reports, corpus_report.MAIN_ROWS[:3])
    assert list(short.columns[0].cells) == list(corpus_report.MAIN_ROWS[:3])
    extended = reports[0] | {"tokens_per_word": 1.25, "tokens_per_word_before": 1.5}
    console.print(corpus_report.table([extended]))
    assert "added tokens)" not in text and "1.250 (1.500)" in console.export_text()
    many = report_of(documents, num_steps=100_000)
    assert "the run repeats the text" in corpus_report.warnings([many])[0]
