"""The chapters: ``NN_name.md``, the text; ``chapter_NN.py``, solved; ``NN_exercises.txt`` and ``check_NN.py``."""
