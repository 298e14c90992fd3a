"""BART: an encoder reads corrupted text, and a decoder writes the text as it was.

Paper: Lewis et al. 2020 (arXiv:1910.13461), sections 2.2 and 5.1: the sentences of a row are
permuted, then 30 % of its words are hidden, each span behind one mask, with span lengths from a
Poisson distribution of mean 3; 500k steps of 8,000 rows. What the paper does not say is from the
authors' command (issue 1899 of facebookresearch/fairseq): rows of 512 tokens of one document, a
random token instead of one mask in ten, a peak rate of 4e-4 after 10k steps of warm-up, fairseq's
Adam with a decay of 0.01 of all parameters, clipping at 0.1, and dropout 0.1, also of the attention
weights. This command has a mean length of 3.5 and about 6,400 rows a step. The vocabulary is
GPT-2's, as in RoBERTa; encoder, decoder and output share their word embeddings.

    python -m bert_jax.main --config=configs/bart.py:large --workdir=/runs/bart \\
        --config.data.store=/data/corpus

The argument is `base` (the default; 6 and 6 blocks, 139 M parameters), `large` (12 and 12, 406 M)
or `tiny`.

What differs from the authors' training:
- The paper turns dropout off for the last tenth of the steps. A run of bert_jax has one dropout for
  all steps.
- The sentences of the token store are permuted; fairseq ends a sentence at the piece ".".
- Random tokens are never special, and an inserted token without room in the row is left out.

Hardware: 256 TPU chips or more for `base` and `large` (the authors' command used 256 GPUs); two CPU
cores and 2 GB of memory for `tiny`, whose recipe is ours and takes five to nine CPU minutes.
Expected: `large`: SQuAD 1.1 F1 94.6, MNLI 89.9 (README of fairseq's examples/bart). Not reproduced
with this code. `tiny`: a held-out denoising loss of 1.46 (75.2 % right); unigram frequencies have
6.11 (4.6 %). Reproduced.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

# Width, heads, and blocks of the encoder and of the decoder.
SIZES = {"base": (768, 12, 6), "large": (1024, 16, 12), "tiny": (128, 2, 2)}


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    width, heads, blocks = SIZES[arg]
    c.family = "bart"
    c.model.hidden_size = width
    c.model.num_attention_heads = heads
    c.model.num_hidden_layers = blocks
    c.model.num_decoder_layers = blocks
    c.model.intermediate_size = 4 * width
    c.model.type_vocab_size = 0
    c.model.layer_norm_eps = 1e-5
    c.objective.terms = ("denoising",)
    c.objective.weights = (1.0,)
    c.data.rows = "whole_sentences"
    c.data.short_seq_prob = 0.0
    c.data.corruption = "denoising"
    c.data.masked_lm_prob = 0.3
    c.data.mask_fractions = (0.9, 0.0, 0.1)
    c.data.poisson_lambda = 3.0
    c.data.permute_sentence_ratio = 1.0
    c.data.tokenizer = "byte_bpe"
    c.data.special_tokens = "roberta"
    c.data.lowercase = False
    c.optimizer.decay_all = True
    c.optimizer.bias_correction = True
    c.optimizer.eps_before_correction = True
    c.schedule.shape = "linear_after_warmup"
    if arg == "tiny":
        c.model.vocab_size = 2048
        c.train.num_steps = 1000
        c.schedule.warmup_steps = 0.1
        c.train.stages = (stage(fraction=1.0, max_seq_length=64),)
        c.schedule.peak_learning_rate = 2e-3
    else:
        c.model.vocab_size = 50265
        # Rows of pre-training have 512 tokens, but the tables have 1,024 positions.
        c.model.max_position_embeddings = 1024
        c.train.num_steps = 500_000
        c.train.batch_size = 8192
        c.train.stages = (stage(fraction=1.0, max_seq_length=512),)
        c.optimizer.eps = 1e-8
        c.optimizer.max_grad_norm = 0.1
        c.schedule.peak_learning_rate = 4e-4
        c.schedule.warmup_steps = 10_000.0
    return c
