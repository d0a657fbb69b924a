"""Every end-to-end test may be on a host of its own."""

from tests.private_host import private_host

__all__ = ["private_host"]
