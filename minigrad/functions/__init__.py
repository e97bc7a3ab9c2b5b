"""The methods of Tensor that PyTorch also has as functions: ``minigrad.exp(x)`` is ``x.exp()``.

Arguments are PyTorch's (``dim``, ``keepdim``); what they mean stands in the docstrings of the methods, in the file of
``methods/`` that has the same name. Some names hide Python's own (``sum``, ``max``, ``abs``), so import the module
rather than its names.
"""

from .comparison import *
from .derived import *
from .derived_indexing import *
from .elementwise import *
from .indexing import *
from .matmul import *
from .movement import *
from .reduce import *
from .search import *
from .softmax import *
from .trigonometry import *
