"""The CNI plugins ``calico`` and ``calico-ipam``.

The version stands here, and not in the package's metadata only, because reading metadata costs more than a whole
VERSION call.
"""

__version__ = "0.1.0"
