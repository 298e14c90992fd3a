"""SpanBERT: exported as a BERT, without the boundary head, which `transformers` lacks."""

import dataclasses

from bert_jax.interop.families.bert import BERT

SPANBERT = dataclasses.replace(
    BERT,
    title="SpanBERT",
    # Weights without further information have no next-sentence head.
    pretraining_classes=[c for c in BERT.pretraining_classes if "next_sentence" not in c.terms],
)
