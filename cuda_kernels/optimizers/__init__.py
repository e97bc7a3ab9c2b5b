"""Many tensors in one launch. The optimizer families import it."""
