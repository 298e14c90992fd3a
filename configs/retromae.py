"""RetroMAE: a BERT whose [CLS] holds the text, for retrieval: `retromae.py:base` or `:tiny`.

Paper: Xiao et al. 2022, "RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked
Auto-Encoder" (arXiv:2205.12035); values are from the README of the authors' program. Masked LM with
30 % of the words, and a decoder of one block, which rebuilds each text from its [CLS] and half of
its other tokens. The authors begin with BERT-base:

    python -m bert_jax.main --config=configs/retromae.py:base --workdir=/runs/retromae \\
        --config.init_from=BERT --config.data.store=/data/corpus

The result is a BERT; fine-tune it on pairs of texts. An export leaves the decoder out.

What differs from the authors' program:
- The decoder draws the tokens that a position sees one by one, not as whole words, and for each
  position anew. The program draws up to 256 sets for a text, and each position takes one of them.
- Rows are segments of documents, a tenth of them shorter, as in BERT; the program cuts documents
  into blocks.

Hardware: one TPU slice or 8 GPUs for `base`, with 8 epochs in the paper; two CPU cores and 2 GB of
memory for `tiny`, which follows configs/tiny.py.
Expected: base: the paper has scores on MS MARCO and BEIR after fine-tuning; not reproduced here.
tiny: a held-out masked-LM loss of 5.36 and a RetroMAE loss of 5.74; the unigram baselines are 6.53
and 6.53. Reproduced.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage


def get_config(arg: str = "base"):
    check_argument(arg, ("base", "tiny"))
    c = load_config("tiny" if arg == "tiny" else "base")
    c.objective.terms = ("masked_lm", "retromae")
    c.objective.weights = (1.0, 1.0)
    c.data.rows = "segments"
    c.data.masked_lm_prob = 0.3
    c.data.whole_word_masking = True
    if arg == "base":
        c.train.batch_size = 256
        # The authors take 8 epochs; this is as much for 4.3 B tokens.
        c.train.num_steps = 262_000
        c.train.stages = (stage(fraction=1.0, max_seq_length=512),)
        c.schedule.peak_learning_rate = 1e-4
        c.schedule.warmup_steps = 0.1
    return c
