"""The config that a model was trained with, on which the config of further training is based."""

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base.errors import UserError
from bert_jax.config.command_line import load_config_file
from bert_jax.interop.families import load_family
from bert_jax.interop.generator import PARTS as GENERATOR_PARTS
from bert_jax.interop.generator import TERM as GENERATOR_TERM
from bert_jax.interop.pretrained import Pretrained
from bert_jax.objectives.terms import make_terms
from bert_jax.pretraining.build import make_objective
from bert_jax.training import workdir


def recipe_of(model: Pretrained) -> ConfigDict:
    """Returns the config that a model is trained with, without terms that need a teacher.

    It is that of the run that made the model or, for a released one, the config of its family.
    """
    trained, family = model.training.get("config"), load_family(model.family)
    if trained and not workdir.is_finetuning(trained):
        config = config_lib.from_dict(trained)
        # Refuses parts that only the stored config names.
        make_objective(config)
    elif family.recipe and not model.model["causal"]:
        config = load_config_file(family.recipe)
    else:
        causal = " with config.model.causal" * model.model["causal"]
        raise UserError(
            f"no config belongs to {model.source}, of the family {model.family}{causal}: write "
            f"a config for it, and give --config.init_from={model.source}"
        )
    terms = zip(config.objective.terms, config.objective.weights, strict=True)
    kept = [(term, x) for term, x in terms if not make_terms([term])[0].needs_teacher]
    if any(term == GENERATOR_TERM for term, _ in kept) and not model.model["generator_size"]:
        raise UserError(
            f"{model.source} is a discriminator without its generator, which trains it: put "
            f"both models into one directory, as {' and '.join(GENERATOR_PARTS)}, and name that"
        )
    with config.unlocked():
        config.objective.terms, config.objective.weights = zip(*kept, strict=True)
    return config
