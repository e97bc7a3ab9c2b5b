"""The course, ``minigrad learn``: ten chapters that check themselves. Only ``minigrad/__main__.py`` may import it."""
