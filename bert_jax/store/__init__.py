"""The token store: its format, its preparation, and rows of TFRecord files."""
