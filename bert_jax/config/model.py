"""The keys of config.model."""

import dataclasses

from bert_jax.config.schema import Field, Owner, Section
from bert_jax.models.bert_config import BertConfig

MODEL: Section = {
    key.name: Field(
        **{name: fact for name, fact in key.metadata.items() if name != "of_weights"},
        owner=Owner.WEIGHTS if key.metadata["of_weights"] else Owner.RUN,
    )
    for key in dataclasses.fields(BertConfig)
    if key.metadata
}
