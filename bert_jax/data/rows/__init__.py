"""Row builders, which form the rows of a batch from the tokens of the store.

`config.data.rows` names one of `ROWS`, or "MODULE:NAME" for a builder outside this package.
`rows.windows.WindowedRows` is the interface of a builder.
"""

# The builder of "pairs" by `config.data.pair_labels`.
PAIRS = {
    "next": "bert_jax.data.rows.pairs:PairRows",
    "order": "bert_jax.data.rows.pairs:OrderedPairRows",
    "three_way": "bert_jax.data.rows.pairs:ThreeWayPairRows",
}
ROWS = {
    "pairs": PAIRS["next"],
    "segments": "bert_jax.data.rows.segments:SegmentRows",
    "halves": "bert_jax.data.rows.halves:HalvesRows",
    "whole_sentences": "bert_jax.data.rows.segments:WholeSentenceRows",
    "full_sentences": "bert_jax.data.rows.packed:FullSentenceRows",
    "doc_sentences": "bert_jax.data.rows.packed:DocSentenceRows",
}
