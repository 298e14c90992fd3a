"""The first state of a run of fine-tuning."""

from collections.abc import Callable

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.heads import load_head
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.pretrained import PROJECTION, Pretrained
from bert_jax.interop.weights import complete_weights, unflatten
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer

# The settings in which embeddings of the same kind may differ.
_SETTINGS = (
    "pooling",
    "include_prompt",
    "double_log",
    "static_queries",
    "query_length",
    "expansion",
)


def make_first_state(
    config: ConfigDict, trainer: Trainer, read_weights: Callable[[], Pretrained]
) -> TrainState:
    """Creates the state of step 0, with the encoder's weights and a head drawn from the seed.

    Weights that are fine-tuned already keep their head if it has the same labels.
    """
    if config.from_scratch:
        return trainer.init_state()
    pretrained = read_weights()
    prefixes: tuple[str, ...] = ("bert/",)
    own = load_head(config.head)
    kept = own.stored_as or config.head, tuple(config.labels)
    if (pretrained.head, pretrained.labels) == kept:
        say(f"the head of {config.init_from} is kept: its labels are those of the task")
        prefixes += ("classifier/",)
        theirs = pretrained.embedding.prompt
        if theirs and "rerank" in config and theirs != (prompt := config.rerank.query_prompt):
            pretrained.warnings.append(
                f"config.rerank.query_prompt is {prompt!r}, but {theirs!r} in {config.init_from}"
            )
    elif pretrained.head:
        pretrained.drop_head()
    if config.head == "sparse" and (problem := pretrained.missing_head("masked_lm")):
        raise UserError(f"config.embedding.kind is sparse, but {problem}: pre-train it")
    prefixes += own.vector_weights
    projection_DxW = pretrained.weights.get(PROJECTION)
    if config.head == "multi_vector" and projection_DxW is not None:
        width = config.embedding.width
        if (theirs := projection_DxW.shape[1]) != width:
            raise UserError(
                f"config.embedding.width is {width}, but {theirs} in {config.init_from}, whose "
                "projection the run begins with"
            )
    others = other_settings(config, pretrained) if "embedding" in config else []
    for warning in pretrained.warnings + others:
        say(f"warning: {warning}")
    if config.data.max_seq_length > pretrained.max_length:
        say(
            f"warning: config.data.max_seq_length is {config.data.max_seq_length}, but "
            f"{config.init_from} was trained with sequences of up to {pretrained.max_length} "
            "tokens: the positions beyond are untrained"
        )
    given = {name: x for name, x in pretrained.weights.items() if name.startswith(prefixes)}
    weights, drawn = complete_weights(trainer.model, given, config.seed)
    pooler = "bert/pooler/dense/kernel"
    if pooler in drawn or (pooler in weights and "pooler" in pretrained.untrained_heads):
        say(f"warning: {config.init_from} has no trained pooler: it is initialized at random")
    return trainer.state_of(unflatten(weights, trainer.model_config))


def other_settings(config: ConfigDict, pretrained: Pretrained) -> list[str]:
    """Describes each setting of embeddings in which a config differs from its weights."""
    theirs = pretrained.embedding
    if theirs == Embedding():
        return []
    ours = Embedding(**load_head(config.head).embedding(config))
    pairs = {
        "query_prompt": (ours.for_queries().prompt, theirs.for_queries().prompt),
        "document_prompt": (ours.for_documents().prompt, theirs.for_documents().prompt),
    }
    if ours.kind == theirs.kind:
        pairs |= {key: (getattr(ours, key), getattr(theirs, key)) for key in _SETTINGS}
        both = ours, theirs
        pairs["skip_punctuation"] = tuple(bool(x.skip_words) for x in both)
        pairs["mean_maxsim"] = tuple(x.similarity == "mean_maxsim" for x in both)
    return [
        f"config.embedding.{key} is {own!r}, but {value!r} in {config.init_from}"
        for key, (own, value) in pairs.items()
        if value not in (own, None)
    ]
