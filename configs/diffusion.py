"""An encoder that writes, trained by masked diffusion: `diffusion.py:base` or `:tiny`.

Papers: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models"
(arXiv:2406.07524), and Nie et al. 2025, "Large Language Diffusion Models" (arXiv:2502.09992), for
the objective. Each row is masked at a rate of its own, from nearly none to all of its tokens, and
the loss of each masked token is divided by the rate: a bound on the negative log-likelihood of the
text. The encoder and the recipe are those of configs/nomic_bert.py, because models with rotary
positions learn faster from few words than BERT; rows are whole documents, packed.

    python -m bert_jax.main --config=configs/diffusion.py:tiny --workdir=/tmp/diffusion_tiny
    python -m bert_jax.predict --model=/tmp/diffusion_tiny write "My fellow citizens" --length=24

From random weights, `tiny` learns no more than the frequencies of tokens: most rows are hidden to a
large part. A masked LM learns to use the tokens around a mask in the same time, and then writes:

    python -m bert_jax.main --config=configs/continue.py:MODEL --workdir=DIR \\
        --config.objective.terms=diffusion --config.objective.weights=1 \\
        --config.data.corruption=diffusion --config.data.rows=fitted_documents \\
        --config.data.max_pairs_per_row=16 --config.data.input='TEXT/*.txt'

Held-out text is scored at eight rates a row, which takes eight times as long as for a masked LM.

Hardware: as for configs/base.py; two CPU cores and 2 GB of memory for `tiny`.
Expected: base is not reproduced with this code. tiny: 6.39 nats a token (unigram frequencies: 6.44;
one seed). 4,000 steps that continue nomic_bert:tiny reach 4.70; see docs/results.md.
"""

from bert_jax import load_config
from bert_jax.config import check_argument


def get_config(arg: str = "base"):
    check_argument(arg, ("base", "tiny"))
    c = load_config(f"nomic_bert:{arg}")
    c.objective.terms = ("diffusion",)
    c.data.corruption = "diffusion"
    c.data.rows = "fitted_documents"
    c.data.max_pairs_per_row = 16
    if arg == "tiny":
        c.data.max_pairs_per_row = 8
        # Each sequence is scored at eight rates.
        c.eval.max_sequences = 256
    return c
