"""The token store: its format and its preparation."""
