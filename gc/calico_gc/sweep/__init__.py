"""What is left on a node of pods that are no more (gc §18.5): found, reported, and removed where that was asked for.

``living`` says who lives, ``traces`` what is there, ``judge`` which of it belongs to nobody, ``residue`` how often that
was seen, and ``act`` removes.
"""
