"""Shows a run: its page, its curves, and what it sees of its corpus."""
