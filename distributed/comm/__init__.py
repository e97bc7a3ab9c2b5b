"""Communicators: what ranks say to each other. It imports no other room of `minigrad.distributed`."""
