"""What a pre-trained BERT is fine-tuned for: GLUE, one's own tables, and their metrics."""
