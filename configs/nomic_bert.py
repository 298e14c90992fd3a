"""NomicBERT, the encoder of Nomic Embed: `nomic_bert.py:base` (137 M parameters) or `:tiny`.

Paper: Nussbaum et al. 2024, "Nomic Embed" (arXiv:2402.01613), section 3.1; values are from mlm.yaml
in nomic-ai/contrastors (commit b0e94ca). It is a BERT with rotary positions, SwiGLU and projections
without biases, trained on Wikipedia and BooksCorpus in rows of 2,048 tokens, full of text. A coin
for each token chooses 30 % of them; evaluation masks 15 %.

    python -m bert_jax.main --config=configs/nomic_bert.py:tiny --workdir=/tmp/nomic_bert_tiny
    python -m bert_jax.convert --model=/tmp/nomic_bert_tiny --output=DIR --to=huggingface

What the authors do not publish, or what differs from them:
- The number of steps of this phase is ours: about five epochs, the number of their earlier recipe.
- The paper's peak rate is 5e-4; that of the recipe, 1e-3, is here.
- Rows do not continue from one block of documents to the next.

Hardware: a TPU slice; two CPU cores and 2 GB of memory for tiny.
Expected: the scores on GLUE in the paper, not reproduced with this code. tiny: a held-out masked-LM
loss of 4.06 nats (unigram frequencies: 6.48); one seed.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

SIZES = ("base", "tiny")


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    c.family = "nomic_bert"
    c.objective.terms = ("masked_lm",)
    c.objective.weights = (1.0,)
    c.data.rows = "full_sentences"
    c.data.corruption = "ettin"
    c.data.masked_lm_prob = 0.3
    c.model.hidden_act = "silu"
    c.model.gated = True
    c.model.biasless = ("attention", "inner", "output")
    c.model.rope_theta = 1000.0
    c.model.attention_probs_dropout_prob = 0.0
    c.optimizer.b2 = 0.98
    c.optimizer.weight_decay = 1e-5
    c.optimizer.bias_correction = True
    c.optimizer.max_grad_norm = 0.0
    c.schedule.shape = "linear_after_warmup"
    c.schedule.warmup_steps = 0.06
    if arg == "tiny":
        c.sinusoidal_positions = 0.0
        c.model.vocab_size = 4096
        c.model.num_hidden_layers = 4
        c.model.intermediate_size = 192
        c.optimizer.max_grad_norm = 1.0
        c.schedule.peak_learning_rate = 2e-3
        c.schedule.warmup_steps = 0.05
        c.train.num_steps = 2000
        c.train.batch_size = 16
        c.train.stages = (stage(fraction=1.0, max_seq_length=64),)
        return c
    # 30,522 pieces; the authors add six rows, which no token has.
    c.model.max_position_embeddings = 2048
    c.train.num_steps = 2700
    c.train.batch_size = 4096
    c.train.stages = (stage(fraction=1.0, max_seq_length=2048),)
    c.schedule.peak_learning_rate = 1e-3
    return c
