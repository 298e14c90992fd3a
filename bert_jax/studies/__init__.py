"""Studies: several configs pre-trained on the same text, fine-tuned and compared."""
