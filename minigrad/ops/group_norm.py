"""Group normalisation (Wu, He 2018)."""

from .batch_norm import BatchNorm


class GroupNorm(BatchNorm):
    """``BatchNorm`` with mean and variance of a group of channels of one sample."""

    autocast = "float32"
    axes = (2, 3)
