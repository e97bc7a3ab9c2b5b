"""The interfaces of flodl, entrenar and atomr on the same training step. Nothing imports it."""
