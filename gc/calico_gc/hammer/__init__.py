"""A load on a cluster that shows whether the collector ever releases what lives, and returns all that is dead (gc §20).

``world`` makes nodes, pods and addresses, ``ledger`` knows which of them live and watches that they keep what they
have, ``collectors`` starts, kills and restarts collectors, ``run`` leads through the phases.
"""
