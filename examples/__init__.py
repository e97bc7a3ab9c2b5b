"""Scripts to read and to run. They are installed as ``minigrad.examples``: ``minigrad train`` is one of them."""
