"""Shows a run: the page, its curves, and what it sees of its corpus."""
