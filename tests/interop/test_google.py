"""Reading Google's checkpoints, and their errors."""

import shutil

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.interop import formats
from tests.interop.small_bert import TOKENS, make_pretrained, same_weights, write_google

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_google(make_pretrained(), tmp_path_factory.mktemp("google"))


@pytest.fixture
def google(checkpoint, tmp_path):
    return shutil.copytree(checkpoint, tmp_path / "google")


def edit_variables(directory, change):
    from bert_jax.base.lean_tensorflow import tf

    prefix = str(directory / "bert_model.ckpt")
    reader = tf.train.load_checkpoint(prefix)
    variables = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    change(variables)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tf.constant(value) for value in variables.values()],
    )


def test_the_optimizers_variables_are_ignored(google):
    def change(variables):
        for slot in ("adam_m", "adam_v"):
            variables[f"bert/pooler/dense/bias/{slot}"] = np.ones((12,), np.float32)
        variables["global_step"] = np.int64(20)

    edit_variables(google, change)
    pretrained = formats.read(google)
    assert pretrained.warnings == []
    assert same_weights(pretrained.weights, make_pretrained().weights)


def test_the_variables_of_google(google):
    from bert_jax.base.lean_tensorflow import tf

    shapes = dict(tf.train.list_variables(str(google / "bert_model.ckpt")))
    assert shapes["bert/encoder/layer_0/attention/self/query/kernel"] == [12, 12]
    assert shapes["bert/encoder/layer_1/intermediate/dense/kernel"] == [12, 20]
    assert shapes["bert/embeddings/LayerNorm/gamma"] == [12]
    assert shapes["cls/predictions/output_bias"] == [len(TOKENS)]
    assert shapes["cls/seq_relationship/output_weights"] == [2, 12]
    assert len(shapes) == 5 + 16 * 3 + 2 + 5 + 2


def test_what_is_read(google):
    pretrained, original = formats.read(google), make_pretrained()
    assert same_weights(pretrained.weights, original.weights)
    assert (pretrained.model, pretrained.terms) == (original.model, original.terms)
    assert pretrained.tokenizer.fingerprint == original.tokenizer.fingerprint
    for lowercase in (True, False):
        assert formats.read(google, lowercase).tokenizer.options["lowercase"] == lowercase


def test_a_family_without_google_names(google):
    with pytest.raises(UserError, match="Google's checkpoints of the family albert cannot be"):
        formats.read(google, family="albert")


@pytest.mark.parametrize("name", ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"])
def test_damaged_files(google, name):
    whole = (google / name).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (b"", whole[: len(whole) // 3], whole[:-20], flipped):
        (google / name).write_bytes(damaged)
        with pytest.raises(UserError, match="damaged"):
            formats.read(google)


def test_several_checkpoints_in_one_directory(google):
    for suffix in ("index", "data-00000-of-00001"):
        for name in ("model.ckpt-10", "model.ckpt-20"):
            shutil.copy(google / f"bert_model.ckpt.{suffix}", google / f"{name}.{suffix}")
        (google / f"bert_model.ckpt.{suffix}").unlink()
    with pytest.raises(UserError, match="model.ckpt-10, model.ckpt-20"):
        formats.read(google)
    assert same_weights(formats.read(google / "model.ckpt-20").weights, make_pretrained().weights)
