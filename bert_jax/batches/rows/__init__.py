"""Row builders, which form the rows of a batch from the tokens of the store.

`config.data.rows` names one of `ROWS`, or "MODULE:NAME" for a builder outside this package.
`rows.windows.WindowedRows` is the interface of a builder.
"""

# The builder of "pairs" by `config.data.pair_labels`.
PAIRS = {
    "next": "bert_jax.batches.rows.pairs:PairRows",
    "order": "bert_jax.batches.rows.pairs:OrderedPairRows",
    "three_way": "bert_jax.batches.rows.pairs:ThreeWayPairRows",
}
ROWS = {
    "pairs": PAIRS["next"],
    "segments": "bert_jax.batches.rows.segments:SegmentRows",
    "halves": "bert_jax.batches.rows.halves:HalvesRows",
    "answers": "bert_jax.batches.rows.answers:AnswerRows",
    "whole_sentences": "bert_jax.batches.rows.segments:WholeSentenceRows",
    "fitted_documents": "bert_jax.batches.rows.segments:FittedDocumentRows",
    "full_sentences": "bert_jax.batches.rows.packed:FullSentenceRows",
    "doc_sentences": "bert_jax.batches.rows.packed:DocSentenceRows",
}
