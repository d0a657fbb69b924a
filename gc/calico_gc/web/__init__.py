"""The page to look at: pools, blocks, addresses, nodes, candidates, handles, and what was done (read-only).

Everything is a pure function of a :class:`calico_gc.view.View`: :class:`calico_gc.web.site.Site` makes pages,
:mod:`calico_gc.web.onefile` makes one file of all of them, :mod:`calico_gc.web.server` hands them out over HTTP.
"""
