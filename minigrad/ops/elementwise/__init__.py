"""Elementwise operations with broadcasting. Gradients have the broadcast shape; autograd sums them back."""

from .arithmetic import *
from .choice import *
from .copies import *
from .formulas import *
from .functions import *
from .powers import *
