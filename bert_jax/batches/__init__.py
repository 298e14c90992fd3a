"""Makes the batches of a step: rows of tokens, and the corruption that hides some of them."""
