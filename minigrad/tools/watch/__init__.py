"""``minigrad watch``: a page on runs, while they train and after. Only ``minigrad/__main__.py`` may import this room.

``runs.py`` reads the runs, ``timelines.py`` what their ranks did, ``server.py`` serves the page, ``page.html`` is it.
"""
