"""What is asked of a Redis before a query starts."""

from __future__ import annotations

import logging
from typing import Any

from assent.protocol.errors import AssentError, ConfigurationError
from assent.sinks.ownership import FOREIGN
from assent.sinks.redis_nodes import Place, RedisNodes
from assent.sinks.redis_owner import RedisOwner
from assent.sinks.redis_transaction import WAITS_FOR_DISK, server_version

logger = logging.getLogger("assent")

_OLDEST = (6, 0)
_SCAN_STEP = 10_000


def check_server(
    nodes: RedisNodes, *, exactly_once: bool, durability: str, replicas: int, allow_eviction: bool
) -> None:
    """ConfigurationError for servers that cannot keep what is promised."""
    for place in nodes.places():
        info: dict[str, Any] = nodes.ask(place, "INFO")
        where = f"the Redis at {place[0]}:{place[1]}"
        if server_version(info) < _OLDEST:
            raise ConfigurationError(
                f"{where} has version {info['redis_version']}; 6.0 or later is needed"
            )
        if info.get("role") != "master":
            raise ConfigurationError(
                f"{where} is a replica, which takes no writes; give the address of its primary "
                "in option url"
            )
        if exactly_once:
            _check_persistence(nodes, place, info, where, durability)
        if replicas > int(info.get("connected_slaves", 0)):
            raise ConfigurationError(
                f"option replicas is {replicas}, and {where} has {info['connected_slaves']} "
                "replicas; add some, or lower it"
            )
        _check_eviction(info, where, allow_eviction)


def check_unowned(nodes: RedisNodes, owner: RedisOwner, prefix: str, take_over: str | None) -> None:
    """ConfigurationError for keys under the prefix that no query of Assent has written.

    Looks through all keys, and so takes its time on a large Redis; only until the prefix has an
    owner.
    """
    if take_over == FOREIGN or owner.is_claimed():
        return
    pattern = "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in prefix) + "*"
    for place in nodes.places():
        cursor = 0
        while True:
            cursor, found = nodes.ask(place, "SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_STEP)
            if found:
                raise ConfigurationError(
                    f"there are keys such as {found[0].decode(errors='replace')!r} at {nodes} that "
                    "no query of Assent has written; choose another keyPrefix, remove them, or, "
                    "if rows with equal keys shall overwrite them, set option takeOver to "
                    f"{FOREIGN}"
                )
            if not cursor:
                break


def _check_persistence(
    nodes: RedisNodes, place: Place, info: dict[str, Any], where: str, durability: str
) -> None:
    lack = _lack_of_persistence(nodes, place, info)
    if lack is None:
        return
    if durability == "fsync":
        raise ConfigurationError(
            f"{where} {lack}: it would lose rows that it has answered for when it crashes. Set "
            "appendonly to yes and, before version 7.2, appendfsync to always; or accept the loss "
            "with option durability=memory"
        )
    logger.warning(
        "%s %s: rows are lost when it crashes, as option durability=memory accepts", where, lack
    )


def _lack_of_persistence(nodes: RedisNodes, place: Place, info: dict[str, Any]) -> str | None:
    if not int(info.get("aof_enabled", 0)):
        return "keeps no append-only file (appendonly is no)"
    waits = server_version(info) >= WAITS_FOR_DISK
    try:
        answer = nodes.ask(place, "CONFIG", "GET", "appendfsync")
    except AssentError:
        if waits:
            return None  # a task that waits in vain will say so
        return "does not tell how it writes its append-only file (CONFIG GET is not allowed)"
    policy = answer[1].decode() if len(answer) == 2 else "unknown"
    if policy == "always" or (policy == "everysec" and waits):
        return None
    return f"does not flush its append-only file in time (appendfsync is {policy})"


def _check_eviction(info: dict[str, Any], where: str, allow_eviction: bool) -> None:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction" or not int(info.get("maxmemory", 0)):
        return
    if not allow_eviction:
        raise ConfigurationError(
            f"{where} evicts keys when its memory is full (maxmemory-policy {policy}): rows and "
            "guards would vanish without a word. Set it to noeviction, or accept it with option "
            "allowEviction=true"
        )
    logger.warning("%s evicts keys (%s), as option allowEviction accepts", where, policy)
