"""The settings in directories of sentence-transformers, and the vectors they give."""

import json
import shutil

import numpy as np
import pytest

import bert_jax
from bert_jax import convert
from bert_jax.base.errors import UserError
from bert_jax.inference.embeddings import score_pairs
from bert_jax.inference.features import write_features
from bert_jax.interop import formats
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.sentence_transformers import read_embedding
from tests.interop.small_bert import (
    edit_json,
    make_finetuned,
    make_pretrained,
    make_tokenizer,
    same_weights,
)

OLD_POOLING = {"word_embedding_dimension": 12, "pooling_mode_cls_token": True}


def write(path, pooling=None, *more, settings=None):
    """Writes the files of sentence-transformers."""
    kinds = ["Transformer", "Pooling", *more]
    modules = [
        {"idx": i, "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (path / "1_Pooling").mkdir(parents=True, exist_ok=True)
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling or OLD_POOLING))
    (path / "sentence_bert_config.json").write_text(json.dumps(settings or {}))
    return path


@pytest.mark.parametrize(
    "pooling, settings, expected",
    [
        (OLD_POOLING, {"max_seq_length": 256}, Embedding("cls", False, 256)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, {}, Embedding()),
        ({"pooling_mode": "cls"}, {"max_seq_length": None}, Embedding("cls")),
    ],
)
def test_settings(tmp_path, pooling, settings, expected):
    assert read_embedding(write(tmp_path, pooling, settings=settings)) == (expected, [])
    normalized = read_embedding(write(tmp_path, pooling, "Normalize", settings=settings))
    assert normalized == (expected._replace(normalize=True), [])


def test_parts_that_are_not_supported(tmp_path):
    assert read_embedding(tmp_path) == (Embedding(), [])
    both = {"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}
    embedding, warnings = read_embedding(write(tmp_path, both, "Dense"))
    assert embedding == Embedding(None) and len(warnings) == 2
    assert "max_tokens and cls_token, is not supported: name the pooling" in warnings[0]
    assert "its module Dense is not supported" in warnings[1]
    of_dense, warnings = read_embedding(write(tmp_path, OLD_POOLING, "Dense"))
    assert of_dense.pooling is None and len(warnings) == 1
    # Dropout does nothing to the vectors of a trained model.
    assert read_embedding(write(tmp_path, OLD_POOLING, "Dropout")) == (Embedding("cls"), [])
    for name in ("../outside", "/outside", "1_Pooling/../../outside"):
        modules = [{"type": "sentence_transformers.models.Pooling", "path": name}]
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(UserError, match=f"modules.json: {name!r} is not the name of a file"):
            read_embedding(tmp_path)


def test_what_is_not_read_is_said_in_python_too(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    write(tmp_path / "hf", OLD_POOLING, "Dense")
    edit_json(tmp_path / "hf" / "config.json", auto_map={"AutoModel": "code.Model"})
    with pytest.warns(UserWarning) as found:
        bert_jax.load(tmp_path / "hf")
    assert "the code that its auto_map names is never run" in str(found[0].message)
    assert "its module Dense is not supported" in str(found[1].message)
    assert len(found) == 2 and found[0].filename == __file__
    edit_json(tmp_path / "hf" / "config.json", model_type="other")
    with pytest.raises(UserError, match="must name its family, and the code that its auto_map"):
        formats.read(tmp_path / "hf")


def test_prompts_lower_casing_and_similarity_are_applied_and_kept(tmp_path):
    pretrained = make_pretrained()
    pretrained.tokenizer = make_tokenizer(lowercase=False)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    write(tmp_path / "hf", OLD_POOLING, settings={"do_lower_case": True, "max_seq_length": 16})
    library = {
        "prompts": {"query": "THE ", "passage": "a "},
        "default_prompt_name": "query",
        "similarity_fn_name": "dot",
    }
    path = tmp_path / "hf" / "config_sentence_transformers.json"
    path.write_text(json.dumps(library))
    ours = bert_jax.load(tmp_path / "hf")
    plain = ours.encode(["the a b", "the the"], prompt="")
    np.testing.assert_allclose(ours.encode(["A b", "the"]), plain, atol=1e-6)
    np.testing.assert_allclose(ours.encode("a B", prompt="the "), plain[0], atol=1e-6)
    (tmp_path / "texts.txt").write_text("A b\nthe\n")
    write_features(
        ours,
        tmp_path / "texts.txt",
        tmp_path / "out.npz",
        layers=(-1,),
        embedding=ours.embedding_with(None, None, None),
    )
    with np.load(tmp_path / "out.npz") as written:
        np.testing.assert_allclose(written["features"], plain, atol=1e-6)
    first, second = ["a", "a b", "c", "e"], ["d e", "b", "f g h i", "e e"]
    dots_N = (ours.encode(first) * ours.encode(second)).sum(1)
    pairs = first, second, dots_N
    assert score_pairs(ours, pairs, ours.embedding)["pearson"] == pytest.approx(1, abs=1e-6)
    cosine = ours.embedding._replace(similarity="cosine")
    assert score_pairs(ours, pairs, cosine)["pearson"] < 0.9999
    convert.convert(str(tmp_path / "hf"), str(tmp_path / "st"), "sentence_transformers")
    assert read_embedding(tmp_path / "st") == read_embedding(tmp_path / "hf")
    assert json.loads((tmp_path / "st" / path.name).read_text()) == library


def test_prompts_by_name_and_the_dimension(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    options = {"normalize": True, "dimension": 5, "query_prompt": "the a ", "document_prompt": "b "}
    kind, source, out = "sentence_transformers", str(tmp_path / "hf"), tmp_path / "st"
    convert.convert(source, str(out), kind, **options)
    written = json.loads((out / "config_sentence_transformers.json").read_text())
    assert written["truncate_dim"] == 5 and written["default_prompt_name"] is None
    # As version 6 writes a model without prompts of its own.
    convert.convert(str(out), str(tmp_path / "again"), kind, query_prompt="", document_prompt="")
    plain, ours = (bert_jax.load(path).embedding for path in (tmp_path / "again", out))
    assert plain.dimension == 5 and plain.prompts == {"query": "", "document": ""}
    assert (ours.for_queries().prompt, ours.for_documents().prompt) == ("the a ", "b ")
    assert ours.with_prompts(document=None, passage="c").for_documents().prompt == "b "
    whole, cut = bert_jax.load(source), bert_jax.load(out)
    expected = whole.encode("the a c d", normalize=True)[:5]
    np.testing.assert_array_equal(cut.encode("c d", prompt_name="query"), expected)
    assert cut.encode([], layers=[1, 2]).shape == (0, 2, 5)
    assert cut.encode(["a"], pooling="tokens")[0].shape == (3, 12)
    with pytest.raises(UserError, match="prompt_name is 'q'; the prompts of .* query, document"):
        cut.encode("a", prompt_name="q")
    with pytest.raises(UserError, match="dimension is 13; .* must be from 1 to 12"):
        convert.convert(source, str(tmp_path / "no"), kind, dimension=13)


def test_only_sentence_embeddings_need_the_pooling(tmp_path):
    """People copy the files at the top of a directory, without 1_Pooling/config.json."""
    formats.write(make_pretrained(), tmp_path, "huggingface")
    write(tmp_path, OLD_POOLING, "Normalize")
    shutil.rmtree(tmp_path / "1_Pooling")
    with pytest.warns(UserWarning, match="has no 1_Pooling/config.json: name the pooling of sent"):
        bert = bert_jax.load(tmp_path)
    assert bert.embedding == Embedding(None, True, 40)
    assert np.isfinite(bert.encode(["a b"], pooling="mean")).all()
    with pytest.raises(UserError, match="pooling is None; it must be one of cls, mean"):
        bert.encode(["a b"])


@pytest.mark.parametrize(
    "settings, tokenizer, expected",
    [
        ({}, {"model_max_length": 64}, 64),
        ({"max_seq_length": 32}, {"model_max_length": 64}, 32),
        ({"max_seq_length": None}, {}, None),
    ],
)
def test_the_length_of_version_6_is_the_tokenizers(tmp_path, settings, tokenizer, expected):
    write(tmp_path, settings=settings)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert read_embedding(tmp_path)[0].max_length == expected


def test_encode_follows_the_settings_unless_told_otherwise(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    write(tmp_path / "hf", OLD_POOLING, "Normalize", settings={"max_seq_length": 6})
    bert = bert_jax.load(tmp_path / "hf")
    assert bert.embedding_with("mean", False, 20) == Embedding("mean", False, 20)
    with pytest.warns(UserWarning, match="truncated to 6 tokens"):
        (found,) = bert.encode(["a b c d e f g"])
    (states,) = bert.encode(["a b c d"], pooling="tokens")
    assert np.abs(np.linalg.norm(states, axis=1) - 1).min() > 1e-3
    np.testing.assert_allclose(found, states[0] / np.linalg.norm(states[0]), atol=1e-5)
    (states,) = bert.encode(["a b c d"], pooling="tokens", normalize=True)
    np.testing.assert_allclose(np.linalg.norm(states, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("family", ["albert", "bert", "modernbert"])
def test_an_export_has_the_encoder_and_the_settings(tmp_path, family):
    formats.write(make_pretrained(family=family), tmp_path / "hf", "huggingface")
    source, first, second = (str(tmp_path / name) for name in ("hf", "first", "second"))
    settings = {"pooling": "cls", "normalize": True, "max_length": 16}
    assert convert.convert(source, first, "sentence_transformers", **settings) == []
    ours, theirs = bert_jax.load(source), bert_jax.load(first)
    assert theirs.embedding == Embedding("cls", True, 16)
    texts = ["a b c.", "the cab", "d"]
    expected = ours.encode(texts, pooling="cls", normalize=True)
    np.testing.assert_array_equal(theirs.encode(texts), expected)
    # What is not named stays as it was.
    convert.convert(first, second, "sentence_transformers", pooling="mean")
    again = formats.read(second)
    assert again.embedding == Embedding("mean", True, 16)
    assert same_weights(again.weights, formats.read(first).weights)
    assert all(name.startswith("bert/") for name in again.weights)


def test_the_default_is_the_mean_of_the_whole_text(tmp_path):
    formats.write(make_pretrained(), tmp_path / "st", "sentence_transformers")
    assert read_embedding(tmp_path / "st") == (Embedding("mean", False, 40), [])
    # The library would look for this file on the Hub.
    assert (tmp_path / "st" / "config_sentence_transformers.json").exists()
    card = (tmp_path / "st" / "README.md").read_text()
    for line in ("library_name: sentence-transformers", "pipeline_tag: sentence-similarity"):
        assert line in card.splitlines()


def test_of_a_generator_and_a_discriminator_the_latter_is_exported(tmp_path):
    terms = ("generator", "replaced_token")
    both = make_pretrained(family="electra", terms=terms, generator_size=0.5)
    expected = {name: x for name, x in both.weights.items() if name.startswith("bert/")}
    formats.write(both, tmp_path / "st", "sentence_transformers")
    assert same_weights(formats.read(tmp_path / "st").weights, expected)


def test_exports_that_are_refused(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    source, out = str(tmp_path / "hf"), str(tmp_path / "out")
    for length in (4, 41):
        with pytest.raises(UserError, match=f"max_length is {length}; .* it must be from 5 to 40"):
            convert.convert(source, out, "sentence_transformers", max_length=length)
    write(tmp_path / "hf")
    shutil.rmtree(tmp_path / "hf" / "1_Pooling")
    with pytest.raises(UserError, match="does not say how it pools tokens: give --pooling"):
        convert.convert(source, out, "sentence_transformers")
    with pytest.raises(UserError, match="is fine-tuned; only --to=huggingface"):
        formats.write(make_finetuned("question_answering"), out, "sentence_transformers")
    with pytest.raises(UserError, match="has a decoder, whose states"):
        formats.write(make_pretrained(family="bart"), out, "sentence_transformers")


def moved(path, old, new):
    """Moves the files of a model, but not those of the library, to a folder of their own."""
    shutil.move(old, new)
    for name in ("modules.json", "config_sentence_transformers.json"):
        if (new / name).exists():
            shutil.move(new / name, path / name)


def test_the_weights_may_be_in_the_folder_of_their_module(tmp_path):
    """As older versions have it, with settings named by the family; and in a Router."""
    settings = {"pooling": "cls", "max_length": 16, "query_prompt": "the "}
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    convert.convert(str(tmp_path / "hf"), str(tmp_path / "st"), "sentence_transformers", **settings)
    expected = bert_jax.load(tmp_path / "st")
    old, router = tmp_path / "old", tmp_path / "router"
    old.mkdir()
    moved(old, tmp_path / "st", old / "0_Transformer")
    shutil.move(old / "0_Transformer" / "1_Pooling", old / "1_Pooling")
    name = "sentence_bert_config.json"
    shutil.move(old / "0_Transformer" / name, old / "0_Transformer" / name.replace("bert", "xlnet"))
    modules = json.loads((old / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (old / "modules.json").write_text(json.dumps(modules))
    shutil.copytree(old, router)
    names = ["0_Transformer", "1_Pooling"]
    types = {name: f"sentence_transformers.base.modules.{name[2:]}" for name in names}
    structure = {"query": names, "document": names}
    (router / "router_config.json").write_text(json.dumps({"types": types, "structure": structure}))
    modules = [{"path": "", "type": "sentence_transformers.base.modules.router.Router"}]
    (router / "modules.json").write_text(json.dumps(modules))
    for path in (old, router):
        found = bert_jax.load(path)
        assert found.embedding == expected.embedding
        np.testing.assert_array_equal(found.encode(["a b"]), expected.encode(["a b"]))
    structure["query"] = names[:1]
    (router / "router_config.json").write_text(json.dumps({"types": types, "structure": structure}))
    with pytest.raises(UserError, match="router_config.json: the routes query, document have diff"):
        bert_jax.load(router)
    for folder in (tmp_path / "hf", old / "0_Transformer"):
        (folder / "adapter_config.json").write_text("{}")
    for path in (tmp_path / "hf", old):
        with pytest.raises(UserError, match=r"is an adapter \(LoRA\) of another model: merge it"):
            bert_jax.load(path)


@pytest.mark.parametrize(
    "library, words",
    [
        ({"truncate_dim": -1}, "truncate_dim is -1; it must be null or at least 1"),
        ({"truncate_dim": "5"}, "truncate_dim is '5'; it must be null or at least 1"),
        ({"prompts": {"query": 1}}, r"prompts is {'query': 1}; it must be a text for each name"),
        ({"prompts": ["a"]}, r"prompts is \['a'\]; it must be a text for each name"),
        ({"prompts": None, "default_prompt_name": "q"}, "default_prompt_name is 'q', which is not"),
    ],
)
def test_settings_that_are_refused(tmp_path, library, words):
    path = write(tmp_path) / "config_sentence_transformers.json"
    path.write_text(json.dumps(library))
    with pytest.raises(UserError, match=f"{path.name}: {words}"):
        read_embedding(tmp_path)


@pytest.mark.parametrize(
    "prompts, expected", [(None, ("", "")), ({"query": None, "passage": "p "}, ("", "p "))]
)
def test_prompts_that_are_null_are_empty(tmp_path, prompts, expected):
    library = {"prompts": prompts, "truncate_dim": None, "default_prompt_name": None}
    (write(tmp_path) / "config_sentence_transformers.json").write_text(json.dumps(library))
    embedding, _ = read_embedding(tmp_path)
    assert (embedding.for_queries().prompt, embedding.for_documents().prompt) == expected


def test_the_pooling_may_leave_out_the_prompt(tmp_path):
    """The tokens of the prompt are read, but not pooled; nor is [CLS] before them."""
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    for mode in ("mean", "cls"):
        write(tmp_path / "hf", {"pooling_mode": mode, "include_prompt": False})
        bert = bert_jax.load(tmp_path / "hf")
        texts, prompt = ["a b", "", "c d e f g h i j " * 9], "the "
        with pytest.warns(UserWarning, match="truncated"):
            states = bert.encode([prompt + text for text in texts], pooling="tokens", prompt="")
            found = bert.encode(texts, prompt=prompt)
        expected = [x[2:].mean(0) if mode == "mean" else x[2] for x in states]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        # Only the first of two equal windows has the prompt.
        windows = bert.encode(["a b c d the a b c d"], prompt=prompt, stride=5, max_length=7)
        parts = [bert.encode("a b c d", prompt=prompt), bert.encode("the a b c d", prompt="")]
        np.testing.assert_allclose(windows[0], np.mean(parts, axis=0), atol=1e-5)
        convert.convert(str(tmp_path / "hf"), str(tmp_path / mode), "sentence_transformers")
        again = bert_jax.load(tmp_path / mode)
        np.testing.assert_allclose(found[:2], again.encode(texts[:2], prompt=prompt), atol=1e-5)


def test_vectors_are_cut_before_they_are_normalized(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    write(tmp_path / "hf", OLD_POOLING, "Normalize")
    library = tmp_path / "hf" / "config_sentence_transformers.json"
    library.write_text(json.dumps({"truncate_dim": 5}))
    bert = bert_jax.load(tmp_path / "hf")
    whole = bert.encode("a b", pooling="tokens")[0]
    unit = whole / np.linalg.norm(whole)
    np.testing.assert_allclose(bert.encode("a b"), unit[:5], atol=1e-6)
    expected = whole[:5] / np.linalg.norm(whole[:5])
    np.testing.assert_allclose(bert.encode("a b", normalize=True), expected, atol=1e-6)
    np.testing.assert_allclose(bert.encode("a b", normalize=False), whole[:5], atol=1e-6)
