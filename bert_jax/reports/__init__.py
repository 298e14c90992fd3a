"""Shows runs: `record.py` reads work directories, `curves.py` draws, `page.py` writes report.html.

Commands and studies call `page.write_pages` at the end of a run. `html.py` fills templates, for
the pages of other folders too.
"""
