"""The operations as methods of Tensor, a file for each family; ``Tensor`` inherits them all.

A file has the name of the file of ``ops/`` whose Functions its methods call. In all of them ``self`` is the Tensor that
inherits the method; at run time the classes have no base, so that a call costs what it costs in Tensor itself.
"""
