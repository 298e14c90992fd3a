"""BERT-base (L12 H768 A12, 110 M parameters), as the paper trained it.

Paper: Devlin et al. 2019 (arXiv:1810.04805), sections 3 and A.2; where the paper is silent, the
values are those of google-research/bert. The corpus is Wikipedia and BooksCorpus, 3.3 billion
words. The other configs start from this one and show what differs. Keys that are not listed here
have the defaults of bert_jax/config/; `python -m bert_jax --config=base` prints them all.

    python -m bert_jax.main --config=configs/base.py --workdir=/runs/base \\
        --config.data.store=/data/wikipedia

Hardware: 16 TPU chips (the paper used 4 Cloud TPUs, which have 16 chips, for 4 days), or one GPU
for short runs.
Expected: held-out masked-LM perplexity 3.99 (paper, table 6), GLUE test average 79.6, SQuAD v1.1
dev F1 88.5. Not reproduced with this code.
"""

from bert_jax.config import check_argument, default_config, stage


def get_config(arg: str = ""):
    check_argument(arg)
    c = default_config()
    # The type of the activations. Parameters, losses and the optimizer are float32.
    c.dtype = "bfloat16"
    c.seed = 0

    # The encoder: a post-LayerNorm Transformer. The keys are named as in bert_config.json.
    c.model.vocab_size = 30522
    c.model.hidden_size = 768
    c.model.num_hidden_layers = 12
    c.model.num_attention_heads = 12
    c.model.intermediate_size = 3072
    c.model.hidden_act = "gelu"
    c.model.hidden_dropout_prob = 0.1
    c.model.attention_probs_dropout_prob = 0.1
    c.model.max_position_embeddings = 512
    c.model.type_vocab_size = 2
    c.model.initializer_range = 0.02
    c.model.layer_norm_eps = 1e-12

    # The loss is the sum of both terms.
    c.objective.terms = ("masked_lm", "next_sentence")
    c.objective.weights = (1.0, 1.0)

    # Text is lower-cased and stripped of accents. Half of the pairs have a random second segment,
    # and a tenth of the documents give shorter rows. 15 % of the tokens are predicted, 80 % of them
    # masked, 10 % kept and 10 % replaced.
    c.data.tokenizer = "wordpiece"
    c.data.lowercase = True
    c.data.rows = "pairs"
    c.data.short_seq_prob = 0.1
    c.data.corruption = "masked_lm"
    c.data.masked_lm_prob = 0.15
    c.data.mask_fractions = (0.8, 0.1, 0.1)
    c.data.whole_word_masking = False
    # Ours: the paper names no held-out fraction, and the program divides no sentence (0), so that
    # no row has the ends of long ones.
    c.data.heldout_fraction = 0.05
    c.data.max_sentence_tokens = 128

    # 1M steps of 256 sequences: 90 % of the steps with 128 tokens and 20 predictions, 10 % with 512
    # and 80.
    c.train.num_steps = 1_000_000
    c.train.batch_size = 256
    c.train.stages = (
        stage(fraction=0.9, max_seq_length=128),
        stage(fraction=0.1, max_seq_length=512),
    )

    # Adam without bias correction, and with decoupled weight decay.
    c.optimizer.name = "adamw"
    c.optimizer.b1 = 0.9
    c.optimizer.b2 = 0.999
    c.optimizer.eps = 1e-6
    c.optimizer.weight_decay = 0.01
    c.optimizer.bias_correction = False
    c.optimizer.max_grad_norm = 1.0

    # Linear warm-up, then linear decay to 0, counted from the first step.
    c.schedule.shape = "bert"
    c.schedule.peak_learning_rate = 1e-4
    c.schedule.warmup_steps = 10_000.0
    c.schedule.decay_power = 1.0

    # On several TPU chips, the parameters are sharded over up to 64 of them (docs/hardware.md). On
    # one chip, CPUs and GPUs, each device has a copy.
    c.sharding = "auto"

    c.checkpoint.every_steps = 1000
    c.checkpoint.keep = 3
    c.eval.every_steps = 10_000
    c.eval.max_sequences = 2048
    return c
