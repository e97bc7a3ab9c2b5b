"""entrenar's interface: the block trainer. Nothing else imports it."""
