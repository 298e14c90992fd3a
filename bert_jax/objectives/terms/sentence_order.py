"""Sentence order prediction, two ways (ALBERT) and three ways (StructBERT, HerBERT)."""

import dataclasses

from bert_jax.base.batch import SENTENCE_ORDER_FIELDS, THREE_WAY_FIELDS
from bert_jax.objectives.terms.next_sentence import NextSentence, pair_metrics


@dataclasses.dataclass(frozen=True)
class SentenceOrder(NextSentence):
    """Predicts whether B follows A (label 0) or A follows B (label 1).

    This is the loss of Lan et al. 2020, section 3.1, on the pooler as in google-research/albert's
    `get_sentence_order_output`. It needs `config.data.pair_labels=order`.
    """

    name = "sop"
    label = "sentence order"
    fields = SENTENCE_ORDER_FIELDS
    labels_field = "sentence_order_labels"
    metrics = pair_metrics("sop", "sentence-order")


@dataclasses.dataclass(frozen=True)
class ThreeWayOrder(SentenceOrder):
    """Predicts whether B follows A (label 0), A follows B (1), or B is random (2).

    This is the sentence structural objective of Wang et al. 2019 (StructBERT), section 2.2.2. It
    needs `config.data.pair_labels=three_way`.
    """

    name = "sso"
    label = "three-way sentence order"
    fields = THREE_WAY_FIELDS
    num_labels = 3
    metrics = pair_metrics("sso", "three-way sentence-order")
