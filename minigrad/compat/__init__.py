"""Bridges to other libraries, one module each, imported when asked for; nothing of minigrad imports them."""
