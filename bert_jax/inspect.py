"""The earlier name of `python -m bert_jax.show_batch`, for one version."""

import runpy

if __name__ == "__main__":
    runpy.run_module("bert_jax.show_batch", run_name="__main__", alter_sys=True)
