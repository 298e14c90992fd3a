"""What commands do after they have read their flags: they bring to a run what its config names.

Only here and in the commands themselves may functions import modules of this package: readers of
other programs' formats, the preparation of text, and reports are imported where they are needed.
"""
