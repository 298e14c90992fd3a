"""Who decides the values of a run's config."""

import pytest

from bert_jax.base.errors import UserError
from bert_jax.commands.complete_config import complete_config
from bert_jax.config import default_config, flatten, stage
from bert_jax.config.command_line import ConfigSource
from bert_jax.config.pretraining import PRETRAINING
from bert_jax.config.schema import Owner
from bert_jax.interop import formats
from tests import stores
from tests.interop.small_bert import make_pretrained

FIELDS = dict(flatten(PRETRAINING))


def keys_of(*owners):
    """Returns the keys of these owners but those of another tokenizer than WordPiece."""
    return {
        key
        for key, field in FIELDS.items()
        if field.owner in owners
        and (field.only_with[:1] != ("data.tokenizer",) or "wordpiece" in field.only_with)
    }


OWNED = {
    "init_from": keys_of(Owner.WEIGHTS, Owner.TOKENIZER),
    # The text of this store trains its vocabulary, so the shares of its sources belong to it too.
    "data.store": keys_of(Owner.STORE, Owner.TOKENIZER)
    | {"model.vocab_size", "data.sampling_exponent", "data.source_weights"},
}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """The value of each key that names an owner: a model of Hugging Face and a token store."""
    folder = tmp_path_factory.mktemp("given")
    formats.write(make_pretrained(), folder / "weights", "huggingface")
    stores.make(stores.options(stores.write_speeches(folder / "texts", 3)), folder / "store")
    return {"init_from": f"{folder}/weights", "data.store": f"{folder}/store"}


def other_value(field, value):
    """Returns a value of the key's type that is not `value`."""
    if field.choices and isinstance(value, tuple):
        return field.choices[:1]
    if field.choices:
        return next(choice for choice in field.choices if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return type(field.default)(value / 2 if value else 1)
    return ("elsewhere=/nowhere",) if isinstance(value, tuple) else "/nowhere"


@pytest.mark.parametrize("owner", OWNED)
def test_the_owner_of_a_key_replaces_a_file_and_refuses_a_flag(owner, given, tmp_path, monkeypatch):
    pretrained = formats.read(given["init_from"])
    monkeypatch.setattr(formats, "read_pretrained", lambda path: pretrained)

    def completed(key, value, *flags):
        config = default_config()
        with config.unlocked():
            config.train.stages = (stage(max_seq_length=16),)
            config.update_from_flattened_dict({owner: given[owner], key: value})
        source = ConfigSource("x.py", config, frozenset(flags))
        return dict(flatten(complete_config(config, tmp_path / "run", source)[0]))

    owned = completed("seed", 0)
    for key in FIELDS.keys() - {owner, "train.stages"}:
        value = other_value(FIELDS[key], owned[key])
        if key in OWNED[owner]:
            assert completed(key, value)[key] == owned[key], key
            # A family only names the format of exports. Vocabularies are compared by their content.
            if (owner, key) not in (("init_from", "family"), ("init_from", "data.vocab")):
                with pytest.raises(UserError) as refused:
                    completed(key, value, key)
                text = str(value[0] if isinstance(value, tuple) else value)
                assert key in str(refused.value) and text in str(refused.value)
        else:
            try:
                assert completed(key, value)[key] == value, key
            except UserError as error:
                # No owner, but a rule between keys.
                assert key.rpartition(".")[2] in str(error)
            except FileNotFoundError:
                assert key == "data.add_tokens"
