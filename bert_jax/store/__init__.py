"""The token store: its format and its preparation.

`token_store.py` reads a finished store. `preparation.py` makes one: `plan.py` has what its
processes agree on, and `part_stages.py` what is done with each part of the input.
"""
