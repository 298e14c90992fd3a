"""RoBERTa, as in its paper: `roberta.py:base` (125 M parameters), `:large` (355 M) or `:tiny`.

Paper: Liu et al. 2019 (arXiv:1907.11692), sections 2 and 5 and table 9. The objective is masked LM
alone. Rows of 512 tokens are full of sentences and cross documents (FULL-SENTENCES); masks are
drawn anew in every epoch, anywhere in a row; the vocabulary is a byte-level BPE. The run has 500k
steps of 8k sequences. The rate falls linearly after its warm-up, and Adam decays every parameter
and clips nothing. fairseq's example trains the base model with less: 125k steps of 2,048
sequences, 5e-4, 10k steps of warm-up.

    python -m bert_jax.main --config=configs/roberta.py:base --workdir=/runs/roberta \\
        --config.data.store=/data/corpus

Without config.data.vocab, the byte-level BPE is trained on the run's own text. XLM-R, CamemBERT
and PhoBERT share model and recipe: to continue from one of them, set config.init_from.

For fine-tuning, the paper's table 10 has batches of 16 or 32, rates of 1e-5, 2e-5 or 3e-5, a
warm-up of 0.06 of the steps and at most 10 epochs; set these keys of configs/finetune/glue.py.

What differs from fairseq:
- A sentence too long for a row is divided; fairseq makes a row that is too long. Rows do not
  continue from one block of documents to the next.
- The first word after </s> is a word by itself; in fairseq, with GPT-2's vocabulary, it belongs to
  the same word as the </s>.
- A row has at most max_predictions_per_seq predictions; fairseq has no limit.

Hardware: 256 TPU chips or more for `base` and `large` (the paper used 1,024 V100 GPUs for a day);
two CPU cores and 2 GB of memory for `tiny`, which follows configs/tiny.py and takes eight minutes
of CPU time.
Expected: MNLI 87.6 and 90.2, SST-2 94.8 and 96.4, CoLA 63.6 and 68.0 (fairseq's README). Not
reproduced with this code. `tiny`: a held-out masked-LM loss of 6.10 (unigram frequencies: 6.75);
reproduced.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

SIZES = ("base", "large", "tiny")


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    c.family = "roberta"
    c.objective.terms = ("masked_lm",)
    c.objective.weights = (1.0,)
    c.data.rows = "full_sentences"
    c.data.corruption = "roberta"
    c.data.tokenizer = "byte_bpe"
    c.data.special_tokens = "roberta"
    c.data.lowercase = False
    c.model.type_vocab_size = 0
    c.model.layer_norm_eps = 1e-5
    c.model.pooler_dropout_prob = 0.1
    c.optimizer.b2 = 0.98
    c.optimizer.decay_all = True
    c.optimizer.bias_correction = True
    c.optimizer.eps_before_correction = True
    c.optimizer.max_grad_norm = 0.0
    c.schedule.shape = "linear_after_warmup"
    if arg != "tiny":
        c.model.vocab_size = 50265
        c.train.num_steps = 500_000
        c.train.batch_size = 8192
        # A row has 76 or 77 masks.
        c.train.stages = (stage(fraction=1.0, max_seq_length=512, max_predictions_per_seq=77),)
        c.schedule.peak_learning_rate = 6e-4
        c.schedule.warmup_steps = 24_000.0
    if arg == "large":
        c.model.num_hidden_layers = 24
        c.model.hidden_size = 1024
        c.model.num_attention_heads = 16
        c.model.intermediate_size = 4096
        c.schedule.peak_learning_rate = 4e-4
        c.schedule.warmup_steps = 30_000.0
    return c
