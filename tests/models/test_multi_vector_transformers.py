"""The states at the [MASK]s that expand a query, against those of `transformers`."""

import numpy as np
import pytest

from bert_jax.interop.huggingface import read_huggingface
from bert_jax.interop.weights import unflatten
from bert_jax.models.multi_vector_model import MultiVectorModel
from tests.models.test_multi_vector_model import MASK_ID, rows, run

pytestmark = pytest.mark.outside
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("expansion", ["masked", "attended"])
@pytest.mark.parametrize("family", ["Roberta", "ModernBert"])
def test_added_masks_have_the_states_of_transformers(family, expansion, tmp_path):
    """RoBERTa counts positions from the id of padding. Local layers see 8 tokens on each side.

    Beyond these, a [MASK] sees no text. PyTorch's attention, the default, then gives zeros.
    """
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 40}
    options = {"num_attention_heads": 2, "pad_token_id": 1, "max_position_embeddings": 40}
    if family == "ModernBert":
        options |= {"local_attention": 16, "bos_token_id": 0, "cls_token_id": 0}
        options |= {"eos_token_id": 2, "sep_token_id": 2}
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        **sizes, **options, attn_implementation="sdpa"
    )
    theirs = getattr(transformers, f"{family}Model")(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight += 0.2 * torch.randn_like(weight)
    theirs.save_pretrained(tmp_path)
    read = read_huggingface(tmp_path)
    params = unflatten(read.weights, read.model_config)
    params["projection"] = {"kernel": np.eye(32, dtype=np.float32)}
    query_length = 32
    model = MultiVectorModel(read.model_config, 32, expansion, query_length, MASK_ID)
    batch = rows([20, 7], 20)
    found = run(model.for_queries(), params, batch)["embeddings"]

    ids = np.full((2, query_length), MASK_ID)
    is_text = np.arange(query_length) < np.array([[20], [7]])
    ids[is_text] = batch["input_ids"][batch["attention_mask"] > 0]
    seen = is_text if expansion == "masked" else np.ones_like(is_text)
    with torch.no_grad():
        states = theirs(torch.tensor(ids), torch.tensor(seen.astype(int))).last_hidden_state
    expected = torch.nn.functional.normalize(states, dim=-1).numpy()
    np.testing.assert_allclose(found, expected, atol=5e-6)
