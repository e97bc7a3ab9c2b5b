"""Plans that compute modules in fewer operations. Importing it fills their table; only ``minigrad`` does.

The table has the plans for each method of a module class, best first. ``minigrad.explain`` shows which of them runs and
why others do not. ``MINIGRAD_FAST=0`` or ``with minigrad.unfused():`` turns them off.
"""

from .. import models, nn
from ..models.llama import LlamaBlock
from ..modes import FAST_IS_OFF
from ..plans import PLANS
from .add_norm import AddNorm, AddNormAcrossBlocks
from .decode import Decode
from .gpt2 import FusedFeedForward, SumsInProducts

if not FAST_IS_OFF:
    PLANS.update(
        {
            nn.Block.forward: (AddNorm(), SumsInProducts()),
            nn.MLP.forward: (FusedFeedForward(),),
            LlamaBlock.forward: (AddNorm(),),
            models.CausalLM._through: (AddNormAcrossBlocks(),),
            models.CausalLM.forward: (Decode(),),
        }
    )
