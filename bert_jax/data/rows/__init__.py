"""Row builders, which form the rows of a batch from the tokens of the store.

`config.data.rows` names one of `ROWS`, or "MODULE:NAME" for a builder outside this package.
`rows.windows.WindowedRows` is the interface of a builder.
"""

ROWS = {
    "pairs": "bert_jax.data.rows.pairs:PairRows",
    "segments": "bert_jax.data.rows.segments:SegmentRows",
    "halves": "bert_jax.data.rows.halves:HalvesRows",
    "whole_sentences": "bert_jax.data.rows.segments:WholeSentenceRows",
    "full_sentences": "bert_jax.data.rows.packed:FullSentenceRows",
    "doc_sentences": "bert_jax.data.rows.packed:DocSentenceRows",
}
