"""Corruptions: which tokens of a row are hidden, and what replaces them.

`config.data.corruption` names one of `CORRUPTIONS`, or "MODULE:NAME" for a corruption outside
this package. A corruption is a class with

    fields: maps the names of the arrays that it adds to a batch to their `BatchField`;
    __init__(tokenizer, spec, store), where `spec` is a `StreamSpec`, and the rows come from
        `store`;
    corrupt(batch, key, first_example), which returns the arrays that it changes or adds;
    needs_sentences (may be missing): whether `batch` shall have `begins_sentence`, bool [B, L], the
        first token of each sentence of the store;
    held_out(spec) (may be missing): a static method that returns the `StreamSpec` of held-out rows,
        with the `max_predictions_per_seq` that they need. Without this method, they are corrupted
        as in training;
    repeats (may be missing): how often each row is corrupted. The copies follow each other and are
        numbered as examples of their own.

Other masking rules need no new class: `masked_lm.MaskingRules` takes them as data.

`corrupt` must depend only on the rows, the key (uint64 [2]) and the number of each row's
example. The rows of a batch are consecutive examples, and `first_example` is the number of the
first. `random_keys.draw_rows` draws random bits that meet this rule.
"""

CORRUPTIONS = {
    "masked_lm": "bert_jax.batches.corruption.masked_lm:BERT",
    "roberta": "bert_jax.batches.corruption.masked_lm:ROBERTA",
    "xlm": "bert_jax.batches.corruption.masked_lm:XLM",
    "modernbert": "bert_jax.batches.corruption.masked_lm:MODERNBERT",
    "ettin": "bert_jax.batches.corruption.masked_lm:ETTIN",
    "spans": "bert_jax.batches.corruption.spans:SPANS",
    "ngrams": "bert_jax.batches.corruption.spans:NGRAMS",
    "distilbert": "bert_jax.batches.corruption.masked_lm:DISTILBERT",
    "electra": "bert_jax.batches.corruption.masked_lm:ELECTRA",
    "denoising": "bert_jax.batches.corruption.denoising:Denoising",
    "diffusion": "bert_jax.batches.corruption.diffusion:Diffusion",
    "none": "bert_jax.batches.corruption.masked_lm:NoCorruption",
}
