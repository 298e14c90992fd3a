"""Row builders: which tokens of the store form a row of a batch.

`config.data.rows` names one of `ROWS`, or "MODULE:NAME" for a builder outside this package.
`rows.windows.WindowedRows` describes what a builder offers.
"""

ROWS = {
    "pairs": "bert_jax.data.rows.pairs:PairRows",
    "segments": "bert_jax.data.rows.segments:SegmentRows",
}
