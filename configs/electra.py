"""ELECTRA: a discriminator that finds the tokens a small generator has replaced.

Paper: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
Generators" (arXiv:2003.10555); values are from configure_pretraining.py and
flops_computation.py of google-research/electra.

    python -m bert_jax.main --config=configs/electra.py:tiny --workdir=/tmp/electra_tiny
    python -m bert_jax.predict --model=/tmp/electra_tiny detect "The chef ate the guests."
    python -m bert_jax.convert --model=/tmp/electra_tiny --output=DIR --to=huggingface

| argument | model | generator | length | batch | peak rate | steps |
|---|---|---|---|---|---|---|
| small | L12 H256, embeddings 128 | 1/4 | 128 | 128 | 5e-4 | 1M |
| base | L12 H768 | 1/3 | 512 | 256 | 2e-4 | 766k |
| large | L24 H1024, 25 % masked | 1/4 | 512 | 2,048 | 2e-4 | 400k |
| tiny | L2 H128, 1,024 tokens, 25 % masked | 1/4 | 32 | 64 | 1e-3 | 3,600 |

`tiny` is our own recipe, which follows configs/tiny.py.

What differs from the authors' program:
- Positions are drawn without replacement.
- Once the second segment has begun, all sentences go to it.
- The loss divides by the sum of weights plus 1e-5, not 1e-6.
- Classification has the two layers of transformers.

For fine-tuning, the authors use layer_decay 0.8 (large: 0.9), squared at the top block (here it is
not), a rate of 1e-4 (large: 5e-5) and 10 % warm-up:

    python -m bert_jax.finetune --config=configs/finetune/glue.py:mrpc \\
        --config.init_from=WORKDIR --config.optimizer.layer_decay=0.8 \\
        --config.schedule.peak_learning_rate=1e-4

Hardware: one GPU or TPU chip for small, a TPU slice for base and large; two CPU cores and 2 GB
of memory for tiny, which takes ten minutes of CPU time.
Expected: GLUE test averages of 77.4 (small) and 82.7 (base) in the authors' README; not reproduced
here. tiny: the discriminator's held-out loss is 0.27 nats (a constant has 0.41), and it finds 53 %
of the replaced tokens; the generator's masked-LM loss is 5.80 nats (unigram frequencies: 6.04). The
generator learns to repeat what is not [MASK], and a tenth of the held-out tokens are random ones,
which its training never has; with masks of its own kind, an earlier version reported 4.6 to 4.8.
Reproduced.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

SIZES = {
    "small": {
        "model.hidden_size": 256,
        "model.embedding_size": 128,
        "model.num_attention_heads": 4,
        "model.intermediate_size": 1024,
        "model.generator_size": 1 / 4,
        "train.num_steps": 1_000_000,
        "train.batch_size": 128,
        "train.stages": (stage(fraction=1.0, max_seq_length=128, max_predictions_per_seq=19),),
        "schedule.peak_learning_rate": 5e-4,
    },
    "base": {
        "model.embedding_size": 768,
        "model.generator_size": 1 / 3,
        "train.num_steps": 766_000,
        "train.batch_size": 256,
        "train.stages": (stage(fraction=1.0, max_seq_length=512, max_predictions_per_seq=79),),
        "schedule.peak_learning_rate": 2e-4,
    },
    "large": {
        "model.num_hidden_layers": 24,
        "model.hidden_size": 1024,
        "model.embedding_size": 1024,
        "model.num_attention_heads": 16,
        "model.intermediate_size": 4096,
        "model.generator_size": 1 / 4,
        "data.masked_lm_prob": 0.25,
        "train.num_steps": 400_000,
        "train.batch_size": 2048,
        "train.stages": (stage(fraction=1.0, max_seq_length=512, max_predictions_per_seq=130),),
        "schedule.peak_learning_rate": 2e-4,
    },
    "tiny": {
        # Pieces of words are easier to predict than words, and their neighbors are near.
        "model.vocab_size": 1024,
        "model.embedding_size": 128,
        "model.generator_size": 1 / 4,
        # As in `large`. With 15 %, the discriminator still marks no token after 4,000 steps.
        "data.masked_lm_prob": 0.25,
        "train.num_steps": 3600,
        "schedule.warmup_steps": 1 / 36,
        "train.batch_size": 64,
        "train.stages": (stage(fraction=1.0, max_seq_length=32),),
        "schedule.peak_learning_rate": 1e-3,
    },
}


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    c.family = "electra"
    c.objective.terms = ("generator", "replaced_token")
    c.objective.weights = (1.0, 50.0)
    c.model.pooler_act = "gelu"
    c.model.pooler_dropout_prob = 0.1
    c.data.rows = "halves"
    c.data.corruption = "electra"
    c.data.short_seq_prob = 0.05
    c.schedule.shape = "product"
    c.update_from_flattened_dict(SIZES[arg])
    return c
