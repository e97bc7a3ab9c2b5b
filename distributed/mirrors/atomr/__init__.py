"""atomr's interface: DataParallelTrainer and the parameter server. Nothing else imports it."""
