"""The device mesh and what of the model lies where on it."""
