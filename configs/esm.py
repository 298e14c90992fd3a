"""ESM-2, a language model of proteins: `esm.py:8m`, `:35m`, `:150m`, `:650m`, `:3b` or `:tiny`.

Paper: Lin et al. 2023, "Evolutionary-scale prediction of atomic-level protein structure" (Science
379), supplement; values are from there and from NVIDIA's recipe (bionemo-framework, esm2). A token
is a residue. LayerNorm is before each sublayer, positions are rotary, and the embeddings of masks
are zero, those of the others rescaled. 15 % of the residues are predicted.

    python -m bert_jax.main --config=configs/esm.py:650m --workdir=DIR \\
        --config.data.input='uniref50/*.fasta.gz'
    python -m bert_jax.main --config=configs/esm.py:tiny --workdir=/tmp/esm_tiny
    python -m bert_jax.convert --model=/tmp/esm_tiny --output=DIR --to=huggingface

tiny is trained on data.input=synthetic_proteins: sequences that a fixed seed draws from the
frequencies of amino acids, with motifs in them. It shows that training works, and knows nothing of
proteins.

What differs: UniRef90 members are not drawn within clusters of UniRef50; sequences that are longer
than a row are divided, not cropped; 15b is left out. The optimizer is NVIDIA's, of whose rate the
decay is linear.

Hardware: a TPU slice; two CPU cores and 2 GB of memory for tiny. The TPU kernel for attention needs
the sizes from 150m on.
Expected: the perplexities in the supplement, not reproduced with this code. tiny: a held-out
masked-LM loss of 2.13 nats (frequencies of the letters: 2.89); one seed.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

# Layers, width, heads.
SIZES = {
    "8m": (6, 320, 20),
    "35m": (12, 480, 20),
    "150m": (30, 640, 20),
    "650m": (33, 1280, 20),
    "3b": (36, 2560, 40),
    "tiny": (4, 128, 4),
}


def get_config(arg: str = "650m"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    layers, width, heads = SIZES[arg]
    c.family = "esm"
    c.objective.terms = ("masked_lm",)
    c.objective.weights = (1.0,)
    c.data.format = "fasta"
    c.data.rows = "segments"
    c.data.short_seq_prob = 0.0
    c.data.corruption = "ettin"
    c.data.tokenizer = "protein"
    c.data.special_tokens = "esm"
    c.data.lowercase = False

    c.model.vocab_size = 33
    c.model.num_hidden_layers = layers
    c.model.hidden_size = width
    c.model.num_attention_heads = heads
    c.model.intermediate_size = 4 * width
    c.model.norm = "all_pre_and_final"
    c.model.token_dropout = 0.12
    c.model.mask_token_id = 32
    c.model.type_vocab_size = 0
    c.model.rope_theta = 10_000.0
    c.model.layer_norm_eps = 1e-5
    c.model.hidden_dropout_prob = 0.0
    c.model.attention_probs_dropout_prob = 0.0

    c.optimizer.b2 = 0.98
    c.optimizer.eps = 1e-8
    c.optimizer.bias_correction = True
    c.schedule.shape = "linear_after_warmup"
    if arg == "tiny":
        c.data.input = "synthetic_proteins"
        c.data.rows = "fitted_documents"
        c.data.max_pairs_per_row = 4
        c.sinusoidal_positions = 0.0
        c.schedule.peak_learning_rate = 2e-3
        c.schedule.warmup_steps = 0.05
        c.train.num_steps = 1000
        c.train.batch_size = 16
        c.train.stages = (stage(fraction=1.0, max_seq_length=128),)
        c.model.max_position_embeddings = 256
        return c

    c.model.max_position_embeddings = 1026
    c.train.num_steps = 500_000
    # 2M tokens a step.
    c.train.batch_size = 2048
    c.train.stages = (stage(fraction=1.0, max_seq_length=1024),)
    c.schedule.peak_learning_rate = 4e-4
    c.schedule.warmup_steps = 2000.0
    return c
