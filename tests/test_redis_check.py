"""Before a query on Redis starts: what is refused, what is accepted knowingly, and no secrets."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from redis import exceptions

from assent.protocol.errors import AssentError, ConfigurationError, FencedError, RetriableError
from assent.sinks.option import read_options
from assent.sinks.redis import RedisSink
from assent.sinks.redis_nodes import RedisNodes, slot_of, slot_tags
from assent.testing.redis import RedisServer, RedisUnavailable
from tests.keyed_query import batch
from tests.redis_query import RedisStage, waits_for_disk

pytestmark = pytest.mark.redis

StartServer = Callable[[Mapping[str, str]], RedisServer]
SECRET = "hunter2-never-shown"


def check(server: RedisServer, **more: Any) -> None:
    RedisStage(server).sink(**more).check(batch({}).schema)


# Persistence and eviction


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"appendonly": "no"}, "keeps no append-only file"),
        ({"appendfsync": "everysec"}, r"does not flush .*\(appendfsync is everysec\)"),
        ({"appendfsync": "no"}, r"does not flush .*\(appendfsync is no\)"),
    ],
)
def test_a_server_that_may_lose_rows(
    start_redis: StartServer,
    settings: dict[str, str],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_redis(settings)
    if waits_for_disk(server) and settings.get("appendfsync") == "everysec":
        check(server)
        return
    with pytest.raises(ConfigurationError, match=rf"{message}.*durability=memory"):
        check(server)
    with caplog.at_level(logging.WARNING, "assent"):
        check(server, durability="memory")
    assert "rows are lost when it crashes" in caplog.text


def test_a_server_that_evicts(start_redis: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    server = start_redis({"maxmemory-policy": "allkeys-lru"})
    check(server)  # without maxmemory nothing is ever evicted
    server.client().config_set("maxmemory", "100mb")
    with pytest.raises(ConfigurationError, match=r"maxmemory-policy allkeys-lru.*allowEviction"):
        check(server)
    with caplog.at_level(logging.WARNING, "assent"):
        check(server, allow_eviction=True)
    assert "evicts keys" in caplog.text


def test_a_replica_and_a_number_of_replicas(start_redis: StartServer) -> None:
    primary, replica = start_redis({}), start_redis({})
    with pytest.raises(ConfigurationError, match=r"replicas is 1, and .* has 0 replicas"):
        check(primary, replicas=1)
    replica.client().replicaof("127.0.0.1", primary.port)
    primary.wait_until(
        lambda client: client.info("replication").get("slave0", {}).get("state") == "online",
        "the replica followed",
    )
    check(primary, replicas=1)
    with pytest.raises(ConfigurationError, match="is a replica"):
        check(replica)
    stage = RedisStage(primary)
    stage.write(0, {"a": 1}, replicas=1)
    assert replica.client().get(f"{stage.prefix}a") == "1"
    replica.pause()
    with pytest.raises(RetriableError, match=r"on replicas: 0 of 1"):
        stage.write(1, {"a": 2}, replicas=1, timeout=0.5)
    replica.resume()


def test_complete_mode_is_accepted_knowingly(redis_server: RedisServer) -> None:
    stage = RedisStage(redis_server)
    with pytest.raises(ConfigurationError, match="allowComplete"):
        stage.sink().check(batch({}).schema, overwrite=True)
    stage.sink(allow_complete=True).check(batch({}).schema, overwrite=True)


# Addresses, users, secrets


def test_passwords_are_asked_for_and_never_shown(start_redis: StartServer) -> None:
    server = start_redis({"requirepass": SECRET})
    url = f"redis://:{SECRET}@127.0.0.1:{server.port}/0"
    stage = RedisStage(server)
    sink = stage.sink(url=url)
    sink.check(batch({}).schema)
    handle = stage.write(0, {"a": 1}, password=SECRET)
    stage.sink(url=url).commit(handle)  # the password is no part of the target
    for shown in (repr(sink), sink.target, str(handle), repr(vars(sink))):
        assert SECRET not in shown
    for wrong in (
        {"url": server.url},
        {"password": "wrong-" + SECRET},
        {"url": url, "user": "nobody"},
    ):
        with pytest.raises(ConfigurationError, match="refused this user") as caught:
            stage.sink(**wrong).check(batch({}).schema)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
    received = pickle.loads(pickle.dumps(sink))
    received.check(batch({}).schema)


def test_a_user_without_rights(start_redis: StartServer) -> None:
    server = start_redis({})
    client = server.client()
    client.execute_command("ACL", "SETUSER", "weak", "on", f">{SECRET}", "~*", "+@all", "-evalsha")
    stage = RedisStage(server)
    with pytest.raises(ConfigurationError, match="refused this user"):
        stage.write(0, {"a": 1}, user="weak", password=SECRET)
    client.execute_command("ACL", "SETUSER", "weak", "+evalsha", "-config")
    if not waits_for_disk(server):
        with pytest.raises(ConfigurationError, match="does not tell how it writes"):
            check(server, user="weak", password=SECRET)
    # The rights that the docs ask for are enough.
    rights = "+@read +@write +@scripting +@connection +info +config|get +wait +cluster|slots"
    rights += " +waitaof" if waits_for_disk(server) else ""
    client.execute_command(
        *("ACL", "SETUSER", "good", "on", f">{SECRET}", f"~{stage.prefix}*", "~assent:*"),
        *rights.split(),
    )
    sink = stage.sink(user="good", password=SECRET)
    sink.check(batch({}).schema)
    sink.commit(stage.write(0, {"a": 1}, user="good", password=SECRET))


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@host",
        f"redis://:{SECRET}@host:port/0",
        f"redis://:{SECRET}@/0",
        f"redis://:{SECRET}@host/zero",
        f"unix://:{SECRET}@/run/redis.sock",
        f"redis://:{SECRET}@[broken",
        f"redis://host,{SECRET}",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a Redis") as caught:
        RedisSink(url, "views:")
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__  # whatever it says, it may quote the URL


def test_the_target_is_the_same_however_it_is_spelt() -> None:
    first = RedisSink(f"redis://b:7000,redis://user:{SECRET}@a:7001/", "views:", key_columns=["k"])
    second = RedisSink("redis://a:7001,redis://b:7000/0", "views:", key_columns=["k"])
    assert first.target == second.target == "a:7001/0,b:7000/0 views:*"
    assert RedisSink("redis://a/3", "views:").target == "a:6379/3 views:*"
    with pytest.raises(ConfigurationError, match="database 0 alone"):
        RedisSink("redis://a:7001/1,redis://b:7000/1", "views:")


def test_options() -> None:
    values = read_options(
        {"url": "redis://a", "keyprefix": "v:", "keycolumns": "x,y", "ttl": "1h"},
        RedisSink.OPTIONS,
        sink="assent-redis",
    )
    sink = RedisSink.from_options(values)
    assert (sink.ttl, sink.timeout, sink.row_format.key_columns) == (3600.0, 30.0, ("x", "y"))
    with pytest.raises(ConfigurationError, match="keyPrefix is missing"):
        read_options({"url": "redis://a"}, RedisSink.OPTIONS, sink="assent-redis")
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"key_prefix": "assent:x"}, "does not begin with assent:"),
        ({"key_prefix": ""}, "option keyPrefix"),
        ({"structure": "list"}, "structure is 'list'"),
        ({"durability": "disk"}, "durability is 'disk'"),
        ({"ttl": 1.0, "expire_at_column": "x"}, "both set"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(ConfigurationError, match=message):
            RedisSink(**{"url": "redis://a", "key_prefix": "v:", **wrong})


def test_a_server_that_is_not_there() -> None:
    sink = RedisSink("redis://127.0.0.1:1", "v:", key_columns=["key"], timeout=0.1)
    with pytest.raises(RetriableError, match=r"127\.0\.0\.1:1/0 cannot be used for now"):
        sink.check(batch({}).schema)


def test_without_redis_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSENT_REDIS_SERVER", "no-such-redis-server")
    with pytest.raises(RedisUnavailable, match="apt install redis-server"):
        RedisServer()


# Errors and slots


def test_every_error_of_the_client_becomes_one_of_assents(redis_server: RedisServer) -> None:
    sink = RedisStage(redis_server).sink(timeout=0.05)
    passing = {"AskError": "1 host:1", "MovedError": "1 host:1"}
    for name, kind in vars(exceptions).items():
        if not (isinstance(kind, type) and issubclass(kind, exceptions.RedisError)):
            continue
        error = kind(passing.get(name, "the reason"))

        def fail(error: Exception = error) -> None:
            raise error

        nodes: RedisNodes = sink._connect()
        with nodes, pytest.raises(AssentError, match=r"reason|host:1"):
            nodes._trying(fail)

    def fenced() -> None:
        raise exceptions.ResponseError("ASSENTFENCED 1")

    with sink._connect() as nodes, pytest.raises(FencedError):
        nodes._trying(fenced)


def test_slots_are_those_of_redis() -> None:
    from redis.crc import key_slot

    for key in (b"a", b"{x}y", b"{}a", b"a{b}c{d}", b"}{", b"a{b", b"{a{b}c}", b"\xff" * 40):
        assert slot_of(key) == key_slot(key)
    assert [slot_of(b"{%b}:x" % tag) for tag in slot_tags()] == list(range(16384))
