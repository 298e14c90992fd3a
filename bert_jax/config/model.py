"""The keys of config.model."""

import dataclasses

from bert_jax.config.schema import Field, Section
from bert_jax.models.bert_config import BertConfig

MODEL: Section = {
    key.name: Field(**key.metadata) for key in dataclasses.fields(BertConfig) if key.metadata
}
