"""The interfaces of flodl and atomr on the same training step. Nothing imports it."""
