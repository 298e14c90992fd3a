"""FlauBERT, a BERT for French: `flaubert.py:base` (138 M parameters), `:large` (373 M) or `:tiny`.

Paper: Le et al. 2020 (arXiv:1912.05372); values are those of the pre-training command in the
README of getalp/Flaubert and of its program, a version of XLM's. The objective is masked LM alone,
with the masks of XLM: every position is chosen by a coin of its own. The model has no token types
and no layer between encoder and decoder; `large` has its LayerNorms before the sublayers. After its
warm-up, the rate falls with the inverse root of the step.

    python -m bert_jax.main --config=configs/flaubert.py:base --workdir=/runs/flaubert \\
        --config.data.store=/data/corpus

The tokenizer needs sacremoses (`pip install -e '.[moses]'`). Without config.data.vocab, its
vocabulary is trained on the run's own text. The released cased one has 68,729 entries from 50,000
merges; for the uncased model set config.data.lowercase. To continue from a released model, set
config.init_from.

What differs from the authors' program:
- It sums the gradients of 16 parts of a batch. Its limit of 5 for their norm and its eps of 1e-6
  are therefore 5/16 and 1e-6/16 for the mean gradient, as here.
- Its rows are cut from one stream of text at any token, and begin with the last token before. Here
  they begin with <s>, as in transformers, and end with a sentence (full_sentences); documents end
  with a second </s>. It never predicts the first token of a row; here <s> may be chosen.
- Initial weights: it draws the tables with a deviation of 1/sqrt(H) and the kernels uniformly; here
  all are truncated normal, 0.02.
- It can train with LayerDrop (`--layerdrop`), which bert_jax does not have.
- It stops when the perplexity has not improved for 20 evaluations; the number of steps is ours.

The repository states neither the number of GPUs, from which the batch of 8,192 follows (256 a GPU),
nor the peak and warm-up of `large`. These values were not checked against the paper.

Hardware: 32 GPUs or more for `base` and `large`; two CPU cores and 2 GB of memory for `tiny`, which
follows configs/tiny.py and takes about five minutes.
Expected: the paper's results on FLUE for `base` and `large`; not reproduced with this code. `tiny`:
a held-out masked-LM loss of 5.81 (unigram frequencies: 6.80); reproduced.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

SIZES = ("base", "large", "tiny")


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    c.family = "flaubert"
    c.objective.terms = ("masked_lm",)
    c.objective.weights = (1.0,)
    c.data.rows = "full_sentences"
    c.data.corruption = "xlm"
    c.data.tokenizer = "moses_bpe"
    c.data.special_tokens = "xlm"
    c.data.lowercase = False
    c.data.language = "fr"
    c.model.type_vocab_size = 0
    c.model.head_transform = False
    c.model.pooler_act = "none"
    c.model.layer_norm_eps = 1e-6
    c.optimizer.b2 = 0.98
    c.optimizer.eps = 1e-6 / 16
    c.optimizer.decay_all = True
    c.optimizer.bias_correction = True
    c.optimizer.eps_before_correction = True
    c.optimizer.max_grad_norm = 5 / 16
    c.schedule.shape = "inverse_root"
    if arg == "tiny":
        # The built-in corpus is English.
        c.data.language = ""
        return c
    c.model.vocab_size = 68_729
    c.train.num_steps = 250_000
    c.train.batch_size = 8192
    c.train.stages = (stage(fraction=1.0, max_seq_length=512),)
    c.schedule.peak_learning_rate = 6e-4
    c.schedule.warmup_steps = 24_000.0
    if arg == "large":
        c.model.norm = "pre"
        c.model.num_hidden_layers = 24
        c.model.hidden_size = 1024
        c.model.num_attention_heads = 16
        c.model.intermediate_size = 4096
        c.schedule.peak_learning_rate = 3e-4
        c.schedule.warmup_steps = 30_000.0
    return c
