"""SpanBERT: spans of words are masked, and predicted from their boundaries too.

Paper: Joshi et al. 2020 (arXiv:1907.10529). The numbers are from the pre-training command in
facebookresearch/SpanBERT: 2.4M steps of 131,072 tokens, fairseq's Adam with eps 1e-8 and a decay of
0.01 of all parameters, a peak rate of 1e-4, 10k steps of warm-up and BERT's linear decay. Each row
has complete sentences of one document. The corpus and the cased vocabulary of 28,996 tokens are
BERT's.

    python -m bert_jax.main --config=configs/spanbert.py:large --workdir=/runs/spanbert \\
        --config.data.store=/data/wikipedia

The argument is `base` (the default), `large`, or `tiny`, a model of BERT-tiny's size for the
built-in corpus (ours, not the paper's).

What differs from the authors' program:
- It divides the gradient by the number of masked tokens once more, so that its clipping at 1.0
  never takes effect; here it does.
- The boundary loss is divided by its number of targets; the program adds 1 on each GPU.

Hardware: 64 TPU chips for `base` and `large` (the paper used 32 V100 for 15 days); two CPU cores
and 2 GB of memory for `tiny`, which takes five minutes of CPU time.
Expected: SQuAD v1.1 F1 92.4 (`base`, dev) and 94.6 (`large`, test), SQuAD v2.0 83.6 and 88.7
(README of the authors' repository). Not reproduced with this code. `tiny`: a held-out masked-LM
loss 0.47 nats below the unigram baseline, and a boundary loss 0.28 below. Reproduced.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

SIZES = ("base", "large", "tiny")


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    if arg == "tiny":
        c = load_config("tiny")
        length, predictions = 64, 10
        # Two predictions per masked token, and rows of complete sentences, take more time than in
        # tiny.py. A smaller vocabulary makes up for that.
        c.model.vocab_size = 4096
        c.train.num_steps = 1500
        c.schedule.warmup_steps = 1 / 15
    else:
        c = load_config("base")
        length, predictions = 512, 77
        c.model.vocab_size = 28996
        c.data.lowercase = False
        c.train.num_steps = 2_400_000
        c.optimizer.eps = 1e-8
        # fairseq's Adam.
        c.optimizer.bias_correction = True
        c.optimizer.eps_before_correction = True
        c.optimizer.decay_all = True
        if arg == "large":
            c.model.num_hidden_layers = 24
            c.model.hidden_size = 1024
            c.model.num_attention_heads = 16
            c.model.intermediate_size = 4096
    c.train.stages = (
        stage(fraction=1.0, max_seq_length=length, max_predictions_per_seq=predictions),
    )
    c.family = "spanbert"
    c.objective.terms = ("masked_lm", "span_boundary")
    c.objective.weights = (1.0, 1.0)
    c.data.rows = "whole_sentences"
    c.data.corruption = "spans"
    c.data.short_seq_prob = 0.0
    return c
