"""The etcd datastore, over the ``etcd3`` package (datastore §4).

::

    store       texts of the generic layer -> transactions, pages of ranges
    watching    a watch that survives servers, compaction and silence
    calls       one request: deadline, tries, endpoints, tokens
    links       connections, one for each endpoint and process
    failures    what an error of gRPC means: nothing sent, perhaps done, refused
    diagnosis   why an endpoint cannot be used, looked at without gRPC, for people
    endpoints   where etcd is: texts and DNS
    identity    certificates and keys
    library     the only module that imports ``etcd3`` and ``grpc``

Importing this package is cheap: the libraries are loaded when a store is made.
"""

from calico_ipam.datastore.etcd.patience import Patience
from calico_ipam.datastore.etcd.store import EtcdStore

__all__ = ["EtcdStore", "Patience"]
