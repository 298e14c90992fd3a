"""What BART writes for corrupted texts, beside the greedy generation of `transformers`."""

import warnings

import numpy as np
import pytest

from bert_jax.inference.finetuned import load_bert
from bert_jax.interop import formats
from bert_jax.tokenizers import CONVENTIONS, training
from tests.interop.small_bert import make_pretrained

pytestmark = pytest.mark.outside
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ["Ann sat.", "The [MASK] of Zanzibar", "[MASK]", "The Senate sat, and sat, and [MASK]."]


def make_bart(ending):
    tokenizer = training.train(
        "byte_bpe",
        ["The Senate of Zanzibar sat."] * 9,
        vocab_size=280,
        lowercase=False,
        max_input_chars_per_word=200,
        sentencepiece_type="bpe",
        special_tokens=CONVENTIONS["roberta"],
    )
    options = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 60}
    pretrained = make_pretrained(family="bart", seed=3, **options)
    pretrained.tokenizer = tokenizer
    # Smaller layers, so that the tokens before and the source change what is the likeliest.
    for name, values in pretrained.weights.items():
        if name.startswith("bert/decoder/"):
            values *= 0 if name.endswith("bias") else 1 if "norm" in name else 0.4
            if name.endswith("norm/scale"):
                values[:] = 1
    pretrained.weights["bert/decoder/position_embeddings"] *= 7.5
    # What is often written is </s>, so that texts end before they are cut.
    table = pretrained.weights["bert/embeddings/word_embeddings"]
    rows = [tokenizer.sep_id, tokenizer.encode_batch([ending])[0][0]]
    table[rows] = table[rows[::-1]]
    return pretrained


@pytest.mark.parametrize(("ending", "is_cut"), [("Za", True), ("C", False)])
def test_denoise_writes_the_greedy_text_of_transformers(tmp_path, ending, is_cut):
    formats.write(make_bart(ending), tmp_path / "hf", "huggingface")
    bert = load_bert(tmp_path / "hf")
    theirs = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    expected, num_cut = [], 0
    for row in bert.rows(TEXTS, masks=True):
        ids = torch.tensor(row.input_ids_L[None].astype(np.int64))
        longest = min(2 * ids.shape[1] + 16, 60)
        options = {"do_sample": False, "num_beams": 1, "max_length": longest}
        written = theirs.generate(ids, **options)[0]
        expected.append(tokenizer.decode(written, skip_special_tokens=True))
        # transformers writes </s> at the end of what is cut.
        num_cut += len(written) == longest
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert bert.denoise(TEXTS) == expected
    assert 0 < num_cut < 4 if is_cut else num_cut == 0
    assert len({*expected}) > 1
    assert [str(x.message) for x in found] == ["a denoised text does not end and is cut"] * num_cut
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert bert.denoise(TEXTS[1]) == expected[1]
