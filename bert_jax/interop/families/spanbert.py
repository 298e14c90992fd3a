"""SpanBERT: a BERT in `transformers`, which has no class for the boundary head.

An export therefore leaves this head out.
"""

import dataclasses

from bert_jax.interop.families.bert import BERT

SPANBERT = dataclasses.replace(
    BERT,
    title="SpanBERT",
    # SpanBERT is trained without next-sentence prediction.
    pretraining_classes=[c for c in BERT.pretraining_classes if "next_sentence" not in c.terms],
)
