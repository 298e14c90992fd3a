"""Any trained BERT, RoBERTa, ALBERT, ELECTRA or ModernBERT, continued on your own text.

The model in config.init_from determines its family, shape, tokenizer and vocabulary, and how it is
trained: the terms, the rows and the masks of the run that made it or, for a released model, of its
family's config. The recipe follows Gururangan et al. 2020, "Don't Stop Pretraining"
(arXiv:2004.10964): the same objective on new text. Rate, batch and length are ours.

    python -m bert_jax.main --config=configs/continue.py --workdir=DIR \\
        --config.init_from=MODEL --config.data.input='TEXT/*.txt' \\
        --config.data.add_tokens=2000 --config.eval.other_text='OTHER/*.txt'

The argument is the schedule. `rewarm`, the default, rises to the peak in a tenth of the steps and
then falls linearly to 0; it is for a model whose rate has ended near 0, as that of every released
BERT. `decay` falls from the peak at once; it is for a model from the middle of a run.

docs/continue.md explains data.add_tokens and eval.other_text, and has the figures of a run.

Hardware: that of the model; two CPU cores for models of MiniLM's size, with
--config.dtype=float32 and a few hundred steps.
Expected: depends on the model and the text; docs/continue.md has the figures of a small run.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage


def get_config(arg: str = "rewarm"):
    check_argument(arg, ("rewarm", "decay"))
    c = load_config("base")
    # c.model and the keys of the recipe are replaced by those of the model in c.init_from.
    c.init_recipe = True
    c.train.num_steps = 10_000
    c.train.batch_size = 64
    c.train.stages = (stage(fraction=1.0, max_seq_length=128),)
    # The optimizer begins anew. Without bias correction, its first steps would be too large.
    c.optimizer.bias_correction = True
    # A larger rate learns the new text faster and forgets more of the old.
    c.schedule.shape = "linear"
    c.schedule.peak_learning_rate = 5e-5
    c.schedule.warmup_steps = 0.1 if arg == "rewarm" else 0.0
    c.checkpoint.every_steps = 500
    c.eval.every_steps = 1000
    return c
