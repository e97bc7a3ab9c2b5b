"""Logarithm of the sigmoid."""

from operator import attrgetter

from .elementwise import OfFamily


class LogSigmoid(OfFamily):
    """y = log(1 / (1 + e^-x));  dx = dy / (1 + e^x)."""

    value, derivative = attrgetter("log_sigmoid.forward"), attrgetter("log_sigmoid.backward")
