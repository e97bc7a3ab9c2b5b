"""Files that survive a crash: safetensors, checkpoints, logs. Any room above the operations may import it."""
