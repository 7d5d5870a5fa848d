"""A deterministic simulator of the protocol: the real code on simulated stores, disk and time."""
