"""The masking rules of published models, as data."""

from bert_jax.data.corruption.masked_lm import MaskingRules

BERT = MaskingRules()

# fairseq's MaskTokensDataset. Any position may be chosen, and random tokens are never special.
# Of whole words, the share is one of words, and each word is masked, kept or replaced as a whole.
ROBERTA = MaskingRules(
    specials=True,
    rate_of="groups",
    rounding="random",
    coin="group",
    random_ids="no_specials",
)
