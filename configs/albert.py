"""ALBERT, by its authors' recipe: `albert.py:base`, `:large`, `:xlarge`, `:xxlarge` or `:tiny`.

Paper: Lan et al. 2020, "ALBERT: A Lite BERT" (arXiv:1909.11942). The embeddings are 128 wide, and
all blocks share their parameters. n-grams of up to three words are masked, and the order of two
segments is predicted instead of the next sentence. The recipe is from google-research/albert's
README: LAMB, 4,096 sequences of 512 tokens with at most 20 predictions, 125k steps. The released
`xxlarge` took 1.5M.

    python -m bert_jax.main --config=configs/albert.py:base --workdir=/runs/albert \\
        --config.data.store=/data/corpus

With `_v2` after the size, as in `base_v2`, the model has no dropout and takes 10M steps (`base`) or
3M, as in version 2 of the released models, whose further text is not public. `xxlarge` has no
dropout in either version. Fine-tuning has its own keys for dropout; the authors keep the model's.

What differs from the authors' program:
- Pairs and masks are drawn anew in every epoch; it writes each document 40 times.
- N-grams never cross the [SEP] between two segments.
- SQuAD 2.0 has BERT's head.

| size | parameters | MNLI | SST-2 | SQuAD 1.1 F1 | SQuAD 2.0 F1 | RACE |
|---|---|---|---|---|---|---|
| base | 12 M | 81.6 | 90.3 | 89.3 | 80.0 | 64.0 |
| large | 18 M | 83.5 | 91.7 | 90.6 | 82.3 | 68.5 |
| xlarge | 59 M | 86.4 | 92.4 | 92.5 | 86.1 | 74.8 |
| xxlarge | 223 M | 90.8 | 96.9 | 94.8 | 90.2 | 86.5 |
| base_v2 | 12 M | 84.6 | 92.9 | 90.2 | 82.1 | 66.8 |
| large_v2 | 18 M | 86.5 | 94.9 | 91.8 | 84.9 | 75.2 |
| xlarge_v2 | 59 M | 87.9 | 95.4 | 92.9 | 87.9 | 80.7 |
| xxlarge_v2 | 223 M | 90.6 | 96.8 | 94.6 | 89.8 | 86.8 |

Hardware: 64 to 512 TPU v3 in the paper; two CPU cores and 2 GB of memory for `tiny`, whose recipe
is ours and takes twelve minutes of CPU time.
Expected: the table's dev scores (README of google-research/albert). Not reproduced with this code.
`tiny`: a held-out masked-LM loss of 5.27 (20.2 % right; unigram frequencies have 6.00 and 5.8 %);
the order is not learned (57.0 %, the more common label 59.6 %), in one run.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

# Width, blocks, heads.
SIZES = {
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "xlarge": (2048, 24, 16),
    "xxlarge": (4096, 12, 64),
    "tiny": (128, 2, 2),
}
_V2 = "_v2"


def get_config(arg: str = "base"):
    check_argument(arg, [*SIZES, *(size + _V2 for size in SIZES if size != "tiny")])
    size = arg.removesuffix(_V2)
    c = load_config("tiny" if arg == "tiny" else "base")
    if arg == "tiny":
        # With a smaller vocabulary, more of the context of a masked n-gram is near.
        c.model.vocab_size = 2048
        c.model.embedding_size = 64
        c.train.num_steps = 3000
        c.schedule.warmup_steps = 1 / 30
        c.train.batch_size = 64
        c.schedule.peak_learning_rate = 2e-3
        # Rows of 32 tokens are mostly single sentences, which have no order.
        c.train.stages = (stage(fraction=1.0, max_seq_length=64),)
    else:
        c.model.vocab_size = 30000
        c.model.embedding_size = 128
        c.train.num_steps = 1_500_000 if size == "xxlarge" else 125_000
        if arg.endswith(_V2):
            c.train.num_steps = 10_000_000 if size == "base" else 3_000_000
        if arg.endswith(_V2) or size == "xxlarge":
            c.model.hidden_dropout_prob = 0.0
            c.model.attention_probs_dropout_prob = 0.0
        c.train.batch_size = 4096
        c.train.stages = (stage(fraction=1.0, max_seq_length=512, max_predictions_per_seq=20),)
        c.optimizer.name = "lamb"
        c.schedule.peak_learning_rate = 0.00176
        c.schedule.warmup_steps = 3125.0
    c.family = "albert"
    c.objective.terms = ("masked_lm", "sentence_order")
    c.data.pair_labels = "order"
    c.data.corruption = "ngrams"
    c.data.tokenizer = "sentencepiece"
    c.data.sentencepiece_rules = "albert"
    c.data.special_tokens = "albert"
    c.model.layer_groups = 1
    c.model.hidden_size, c.model.num_hidden_layers, c.model.num_attention_heads = SIZES[size]
    c.model.intermediate_size = 4 * c.model.hidden_size
    # Google's program means this form by "gelu".
    c.model.hidden_act = "gelu_new"
    return c
