"""The Kubernetes API as datastore: custom resources, nodes and pods (datastore §5, §8 to §10).

``api`` speaks HTTP, ``paths`` knows where things are, ``codec`` and ``pods`` what they look like, ``store`` keeps the
contract, ``watch`` follows changes.
"""
