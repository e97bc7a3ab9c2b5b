"""flodl's interface: Ddp, Trainer, the builder and ElChe. Nothing else imports it."""
