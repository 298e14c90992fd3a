"""Any trained model, continued on your own text: `continue:MODEL`.

MODEL is a work directory of bert_jax or one of its checkpoints, a Hugging Face directory or a
Google checkpoint. The run begins with its weights, which determine its shape, tokenizer and
vocabulary. It is trained as before: with the terms, the rows and the masks of the run that made it
or, if it is a released model, of the config of its family. So it learns new text by the same
objective, as in Gururangan et al. 2020, "Don't Stop Pretraining" (arXiv:2004.10964). Rate, batch
and length are ours.

    python -m bert_jax.main --config=configs/continue.py:MODEL --workdir=DIR \\
        --config.data.input='TEXT/*.txt' \\
        --config.data.add_tokens=2000 --config.eval.other_text='OTHER/*.txt'

The rate rises to its peak in a tenth of the steps and then falls linearly to 0, for a model whose
rate has ended near 0, as that of every released BERT. A model from the middle of a run needs no
warm-up: --config.schedule.warmup_steps=0.

docs/continue.md explains data.add_tokens and eval.other_text, and has the figures of a run.

Hardware: that of the model; two CPU cores for models of MiniLM's size, with
--config.dtype=float32 and a few hundred steps.
Expected: depends on the model and the text; docs/continue.md has the figures of a small run.
"""

import dataclasses

from bert_jax import load_config
from bert_jax.base.errors import UserError
from bert_jax.config import stage
from bert_jax.config.data import SAMPLING


def get_config(arg: str = ""):
    if not arg:
        raise UserError(
            "--config=continue names no model: write --config=continue:MODEL, such as "
            "continue:bert-base-uncased for the directory that hf download --local-dir made"
        )
    # Other configs must not load JAX.
    from bert_jax.batches.stream import StreamSpec
    from bert_jax.commands.recipe import recipe_of
    from bert_jax.interop import formats

    model = formats.describe(arg)
    recipe = recipe_of(model)
    c = load_config("base")
    c.init_from = arg
    c.family = model.family
    c.model.update(model.model)
    c.objective.terms = recipe.objective.terms
    c.objective.weights = recipe.objective.weights
    for field in dataclasses.fields(StreamSpec):
        # The rows and the masks are those of the recipe, the shares of sources those of the text.
        if field.name in c.data and field.name not in (*SAMPLING, "num_threads"):
            c.data[field.name] = recipe.data[field.name]
    c.train.num_steps = 10_000
    c.train.batch_size = 64
    c.train.stages = (stage(fraction=1.0, max_seq_length=128),)
    # The optimizer begins anew. Without bias correction, its first steps would be too large.
    c.optimizer.bias_correction = True
    # A larger rate learns the new text faster and forgets more of the old.
    c.schedule.shape = "linear"
    c.schedule.peak_learning_rate = 5e-5
    c.schedule.warmup_steps = 0.1
    c.checkpoint.every_steps = 500
    c.eval.every_steps = 1000
    return c
