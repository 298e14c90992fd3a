"""HerBERT, a BERT for Polish: `herbert.py:base` (124 M parameters), `:large` (355 M) or `:tiny`.

Paper: Mroczkowski et al. 2021 (arXiv:2105.01735), the second version of HerBERT. The objective is
masked LM of whole words and StructBERT's sentence order: the second segment follows the first,
precedes it, or comes from another document, a third each. Batch and steps are those of the
README of allegro/HerBERT: 50k steps of 2,560 sequences for `base`, 60k for `large`. The tokenizer
is a cased BPE of 50,000 entries on BERT's words.

    python -m bert_jax.main --config=configs/herbert.py:base --workdir=/runs/herbert \\
        --config.data.store=/data/corpus

Without config.data.vocab, the vocabulary is trained on the run's own text. To continue from a
released model, set config.init_from.

What differs from the authors' training, whose program is not public:
- They started from XLM-R's weights. Here the weights are random unless config.init_from names some.
- They tokenized with BPE-dropout, which bert_jax does not have.
- Learning rate, warm-up, Adam and the lengths of the stages are BERT's. The repository names none
  of them, and these values were not checked against the paper.

Hardware: 64 TPU chips or more for `base` and `large`; two CPU cores and 2 GB of memory for `tiny`,
which follows configs/tiny.py and takes two to six minutes.
Expected: KLEJ 86.3 and 88.4 (README of allegro/HerBERT); not reproduced with this code. `tiny`: a
held-out masked-LM loss of 5.75 (unigram frequencies: 6.79); the order is not learned (42.3 %, the
most common label 42.4 %). Reproduced.
"""

from bert_jax import load_config
from bert_jax.config import check_argument

SIZES = ("base", "large", "tiny")


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    c.family = "herbert"
    c.objective.terms = ("masked_lm", "three_way_order")
    c.objective.weights = (1.0, 1.0)
    c.data.pair_labels = "three_way"
    c.data.whole_word_masking = True
    c.data.tokenizer = "bert_bpe"
    c.data.special_tokens = "herbert"
    c.data.lowercase = False
    if arg == "tiny":
        return c
    c.data.language = "pl"
    c.model.vocab_size = 50_000
    # As released: a table of 514 positions, of which sequences use 512.
    c.model.max_position_embeddings = 514
    c.train.num_steps = 50_000
    c.train.batch_size = 2560
    if arg == "large":
        c.model.num_hidden_layers = 24
        c.model.hidden_size = 1024
        c.model.num_attention_heads = 16
        c.model.intermediate_size = 4096
        c.train.num_steps = 60_000
    return c
