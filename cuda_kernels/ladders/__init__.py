"""The steps from a naive kernel to a fast one, to read and to measure. Nothing imports it."""
