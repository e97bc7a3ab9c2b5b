"""entrenar's interface: the block trainer and its accumulator. Nothing else imports it."""
