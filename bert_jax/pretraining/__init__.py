"""A run of pre-training, from its config to its results."""
