"""The built-in corruptions: the masking rules of published models, as data, and none."""

from typing import ClassVar

import numpy as np

from bert_jax.base.batch import BatchFields
from bert_jax.batches.corruption.masked_lm import MaskingRules
from bert_jax.batches.corruption.spans import choose_ngrams, choose_spans

BERT = MaskingRules()

# fairseq's MaskTokensDataset. Any position may be chosen, and random tokens are never special.
# With whole words, a fraction of the words is chosen; each is masked, kept or replaced as a whole.
ROBERTA = MaskingRules(
    specials=True, rate_of="groups", rounding="random", coin="group", random_ids="no_specials"
)

# `PairWithSpanMaskingScheme` in SpanBERT's masking.py, with the options of its pre-training
# command.
SPANS = MaskingRules(
    whole_words=True,
    rate_of="text",
    rounding="up",
    choose=choose_spans,
    choice_draws=2,
    coin="span",
    random_ids="text",
    boundaries=True,
)

# ALBERT's create_pretraining_data.py. Only the choice of tokens differs from BERT.
NGRAMS = MaskingRules(whole_words=True, choose=choose_ngrams, choice_draws=2)

# `Distiller.prepare_batch_mlm` of transformers' distillation project: rare tokens are chosen more
# often. It draws over a whole batch; here each row has its own share.
DISTILBERT = MaskingRules(rounding="random", count_power=-0.7)

# `mask` in google-research/electra's pretrain_helpers.py: no chosen token becomes a random token.
# (The original draws positions with replacement, so some count twice.)
ELECTRA = MaskingRules(shares=(0.85, 0.15, 0.0))


class NoCorruption:
    """Changes nothing, for objectives such as next-token prediction."""

    fields: ClassVar[BatchFields] = {}

    def __init__(self, tokenizer, spec, store):
        pass

    def corrupt(
        self, batch: dict[str, np.ndarray], key: np.ndarray, first_example: int
    ) -> dict[str, np.ndarray]:
        """Returns no arrays."""
        return {}
