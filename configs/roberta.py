"""RoBERTa, as in its paper: `roberta.py:base` (125 M parameters), `:large` (355 M) or `:tiny`.

Paper: Liu et al. 2019 (arXiv:1907.11692), sections 2 and 5 and table 9. The objective is masked LM
alone. Rows of 512 tokens are full of sentences and cross documents (FULL-SENTENCES); masks are
drawn anew in every epoch, anywhere in a row; the vocabulary is a byte-level BPE. The run has 500k
steps of 8k sequences. The rate falls linearly after its warm-up, and Adam decays every parameter
and clips nothing. fairseq's example trains the base model with less: 125k steps of 2,048
sequences, 5e-4, 10k steps of warm-up.

    python -m bert_jax.main --config=configs/roberta.py:base --workdir=/runs/roberta \\
        --config.data.store=/data/corpus

Without config.data.vocab, the vocabulary is trained on the run's own text. CamemBERT, PhoBERT and
XLM-R have this model and recipe, and their own text, vocabulary, batch and rate:

| argument                    | steps, batch  | rate, warm-up        | vocabulary             |
|-----------------------------|---------------|----------------------|------------------------|
| camembert (111 M, French)   | 100k, 8,192   | 7e-4, 10k            | 32,005, SentencePiece  |
| phobert (135 M, Vietnamese) | 540k, 1,024   | 4e-4, 27k            | 64,001, fastBPE        |
| phobert_large (369 M)       | 1,080k, 512   | 2e-4, 54k            | 64,001, fastBPE        |
| xlmr (278 M, 100 languages) | 1,500k, 8,192 | as `base` (assumed)  | 250,002, SentencePiece |
| xlmr_large (560 M)          | 1,500k, 8,192 | as `large` (assumed) | 250,002, SentencePiece |

Each has a small twin: `camembert_tiny`, `phobert_tiny`, `xlmr_tiny`.

- CamemBERT: Martin et al. 2020 (arXiv:1911.03894). 15 % of the words are chosen, and all pieces of
  a word are masked, kept or replaced together. Their rows hold complete paragraphs; here they are
  full of sentences.
- PhoBERT: Nguyen and Nguyen 2020 (arXiv:2003.00744). Rows have 256 tokens. Steps and warm-up are
  40 and 2 epochs of 13.8 M rows, as in the paper. The text must be segmented into words, with
  spaces between words and marks and "_" between the syllables of a word ("Tôi là sinh_viên .");
  the authors used RDRSegmenter of VnCoreNLP. Give config.data.format=sentences if each line has a
  sentence.
- XLM-R: Conneau et al. 2020 (arXiv:1911.02116). Languages are drawn by their share of the text to
  the power of 0.3, and nothing in a row marks its language; config.data.sources=FOLDER names the
  text of each. The paper names neither a rate nor a warm-up: those of RoBERTa are here.

The numbers of the three are those that the papers are known for. They were not checked against the
papers' text, and no program of the authors is public that could be compared. To continue from a
released model, use `continue:MODEL`.

For fine-tuning, the paper's table 10 has batches of 16 or 32, rates of 1e-5, 2e-5 or 3e-5, a
warm-up of 0.06 of the steps and at most 10 epochs; set these keys of configs/finetune/glue.py.

What differs from fairseq:
- A sentence too long for a row is divided; fairseq makes a row that is too long. Rows do not
  continue from one block of documents to the next.
- The first word after </s> is a word by itself; in fairseq, with GPT-2's vocabulary, it belongs to
  the same word as the </s>.
- A row has at most max_predictions_per_seq predictions; fairseq has no limit. With whole words,
  fewer than one row in 10,000 is cut.

Hardware: 256 TPU chips or more for `base` and `large` (the paper used 1,024 V100 GPUs for a day);
CamemBERT's authors used 256 V100 GPUs for a day, PhoBERT's 4 for three and five weeks, XLM-R's 500.
Two CPU cores and 2 GB of memory for `tiny` and the other small twins, which follow configs/tiny.py
and take four to eight minutes of CPU time.
Expected: MNLI 87.6 and 90.2, SST-2 94.8 and 96.4, CoLA 63.6 and 68.0 (fairseq's README). XLM-R:
XNLI, trained on English alone, 76.2 and 80.9 on average. Not reproduced with this code. Held-out
masked-LM losses of the small twins (unigram frequencies), on the built-in English text: `tiny` 6.18
(6.76), `camembert_tiny` 5.86 (6.41), `phobert_tiny` 6.39 (7.14), `xlmr_tiny` 5.39 (6.42);
reproduced.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

SIZES = (
    *("base", "large", "tiny", "camembert", "camembert_tiny", "phobert", "phobert_large"),
    *("phobert_tiny", "xlmr", "xlmr_large", "xlmr_tiny"),
)


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    kin = next((name for name in ("camembert", "phobert", "xlmr") if arg.startswith(name)), "")
    size = arg.removeprefix(kin).removeprefix("_") or "base"
    c = load_config("tiny" if size == "tiny" else "base")
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
    if size != "tiny":
        c.model.vocab_size = 50265
        c.train.num_steps = 500_000
        c.train.batch_size = 8192
        # A row has 76 or 77 masks.
        c.train.stages = (stage(fraction=1.0, max_seq_length=512, max_predictions_per_seq=77),)
        c.schedule.peak_learning_rate = 6e-4
        c.schedule.warmup_steps = 24_000.0
    if size == "large":
        c.model.num_hidden_layers = 24
        c.model.hidden_size = 1024
        c.model.num_attention_heads = 16
        c.model.intermediate_size = 4096
        c.schedule.peak_learning_rate = 4e-4
        c.schedule.warmup_steps = 30_000.0
    if kin:
        {"camembert": _camembert, "phobert": _phobert, "xlmr": _xlmr}[kin](c, size)
    return c


def _camembert(c, size):
    c.family = "camembert"
    c.data.tokenizer = "sentencepiece"
    c.data.special_tokens = "camembert"
    c.data.whole_word_masking = True
    if size == "tiny":
        c.model.vocab_size = 4096
        return
    c.data.language = "fr"
    c.model.vocab_size = 32_005
    c.train.num_steps = 100_000
    c.train.stages = (stage(fraction=1.0, max_seq_length=512),)
    c.schedule.peak_learning_rate = 7e-4
    c.schedule.warmup_steps = 10_000.0


def _phobert(c, size):
    c.data.tokenizer = "fastbpe"
    if size == "tiny":
        return
    c.model.vocab_size = 64_001
    # As released: transformers counts 258, with two that no token has.
    c.model.max_position_embeddings = 256
    c.train.stages = (stage(fraction=1.0, max_seq_length=256, max_predictions_per_seq=39),)
    c.train.batch_size = 1024 if size == "base" else 512
    # 40 and 2 epochs of 13.8 M rows.
    c.train.num_steps = 540_000 if size == "base" else 1_080_000
    c.schedule.warmup_steps = c.train.num_steps / 20
    c.schedule.peak_learning_rate = 4e-4 if size == "base" else 2e-4


def _xlmr(c, size):
    c.family = "xlm_roberta"
    c.data.tokenizer = "sentencepiece"
    c.data.sampling_exponent = 0.3
    if size == "tiny":
        # SentencePiece finds fewer than 8,192 pieces in the built-in corpus.
        c.model.vocab_size = 4096
        return
    c.model.vocab_size = 250_002
    c.train.num_steps = 1_500_000
