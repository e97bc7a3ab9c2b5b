"""Starting ranks and letting them find each other. It imports `comm`; `train` and `mirrors` import it."""
