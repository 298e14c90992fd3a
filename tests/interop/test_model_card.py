"""The README.md of an export."""

import pytest

from bert_jax.interop import formats
from tests.interop.small_bert import make_finetuned, make_pretrained
from tests.interop.vector_kinds import late_interaction, splade, write_encoder


def test_it_describes_the_training_and_the_results(tmp_path):
    pretrained = make_pretrained()
    pretrained.training = {
        "step": 2500,
        "config": {
            "train": {"batch_size": 32, "sizes": {"steps": [0, 5]}},
            "seed": 5,
            "data": {"input": ["a|b.txt", "/home/ada/my texts/*.txt"], "vocab": "", "store": "x/y"},
            "init_from": "gs://ada/runs/one/",
        },
        "corpus": {"sources": 3, "report": {"formats": [["jsonl", "/home/ada/a", 7]], "tokens": 9}},
        "results": {"mlm_loss": 5.8538, "unigram_mlm_loss": 6.5, "num_sequences": 1024},
    }
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    card = (tmp_path / "hf" / "README.md").read_text()
    for line in (
        "pipeline_tag: fill-mask",
        "tags: [bert, masked-lm, next-sentence]",
        "| steps | 2500 |",
        "| train.batch_size | 32 |",
        "| seed | 5 |",
        "| train.sizes.steps | 0, 5 |",
        "| init_from | one/ |",
        "| data.input | a\\|b.txt, my texts/*.txt |",
        "| data.store | x/y |",
        "| corpus.report.tokens | 9 |",
        "| masked-LM loss (nats) | 5.854 |",
        "| masked-LM loss (nats), unigram frequencies | 6.5 |",
        "| num_sequences | 1024 |",
    ):
        assert line in card.splitlines()
    assert "ada" not in card and "formats" not in card and "data.vocab" not in card


def test_that_of_a_reranker_has_the_scores_of_both_stages_and_an_example(tmp_path):
    pretrained = make_finetuned("sequence_classification", ())
    pretrained.activation = "sigmoid"
    scores = {"ndcg@10": 0.6, "first_ndcg@10": 0.5, "retrieval_first_map": 0.25}
    pretrained.training = {"step": 7, "config": {"task": "rerank"}, "results": scores}
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    lines = (tmp_path / "hf" / "README.md").read_text().splitlines()
    for line in (
        "library_name: sentence-transformers",
        "pipeline_tag: text-ranking",
        "tags: [bert, sentence-transformers, cross-encoder, reranker]",
        'reranker = CrossEncoder("PATH")',
        "| ndcg@10 | 0.6 |",
        "| ndcg@10, first stage | 0.5 |",
        "| retrieval_map, first stage | 0.25 |",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("make", "name", "tags", "fact"),
    [
        (splade, "SparseEncoder", "sparse-encoder, sparse, splade, masked-lm", "pooling | max"),
        (
            late_interaction,
            "MultiVectorEncoder",
            "multi-vector, colbert, late-interaction",
            "skip_words | ., ,, ;",
        ),
    ],
)
def test_that_of_other_kinds_of_vectors_names_their_class(make, name, tags, fact, tmp_path):
    pretrained = formats.read(make(write_encoder(tmp_path / "first")))
    formats.write(pretrained, tmp_path / "st", "sentence_transformers")
    lines = (tmp_path / "st" / "README.md").read_text().splitlines()
    for line in (
        "library_name: sentence-transformers",
        "pipeline_tag: feature-extraction",
        f"tags: [bert, sentence-transformers, {tags}]",
        f"Written by bert_jax. Load it with `sentence_transformers.{name}`.",
        f"from sentence_transformers import {name}",
        f"| embedding.{fact} |",
    ):
        assert line in lines
