"""Attention on tiles. The attention family imports it."""
