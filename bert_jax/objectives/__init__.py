"""What is learned, one file an objective.

Each returns sums over the batch it is given, not means: the caller divides by
the weight of the *global* batch, whatever the number of devices or microbatches.
Dimension letters as in `bert_jax.models`.
"""
