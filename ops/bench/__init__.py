"""Measures Conductor beside its peers: same machine, same server settings, same number of worker processes. See README.md."""
