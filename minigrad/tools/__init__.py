"""Tools for looking at a model: pictures, gradient checks, memory. Nothing in the library imports it."""
