"""Chaos on the real thing: see `assent.testing.chaos.__main__`."""
