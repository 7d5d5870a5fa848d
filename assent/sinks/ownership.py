"""Whose rows are in a store that knows no transactions: words that its sinks share."""

from __future__ import annotations

UNGUARDED = "unguarded"
"""The owner where there is no ledger, and so no order of epochs: whoever comes may write."""

FOREIGN = "unowned"
"""What option takeOver says for rows that no query of Assent owns."""


def described(owner: str) -> str:
    """An owner, as an error names it."""
    if owner == UNGUARDED:
        return "queries without exactly_once"
    return f"the query whose ledger has the identity {owner}"
