"""The Redis sink on a real server: replays, late writers, owners, crashes.

What readers see is read by a client of its own, after each phase, together with the verdicts.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from assent.protocol.errors import (
    AssentError,
    ConfigurationError,
    FencedError,
    InDoubtError,
    RetriableError,
)
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.name import nonce
from assent.protocol.step import Step, When
from assent.protocol.verdict import Verdict
from assent.testing.redis import RedisCluster, RedisServer
from tests.keyed_query import KeyedQuery, batch
from tests.redis_query import RedisStage, waits_for_disk

pytestmark = pytest.mark.redis

StartServer = Callable[[Mapping[str, str]], RedisServer]


@pytest.fixture
def stage(redis_server: RedisServer) -> RedisStage:
    return RedisStage(redis_server)


def owner(stage: RedisStage) -> dict[str, str]:
    found = stage.server.client().hgetall(f"assent:owner:{stage.prefix}")
    return {name: value for name, value in found.items() if not name.startswith("vote:")}


# One task


def test_begin_write_pre_commit_commit(stage: RedisStage) -> None:
    sink = stage.sink()
    transaction = sink.begin(stage.name(), 3)
    assert stage.seen() == {}
    sink.write(transaction, batch({"a": 1, "b": 2}))
    assert stage.seen() == {"a": "1", "b": "2"}  # before the decision, and the docs say so
    sink.write(transaction, batch({"c": 3}))
    handle = sink.pre_commit(transaction)
    assert list(sink.pending(stage.identity)) == []
    for _ in range(2):
        assert sink.verdict(handle) is Verdict.COMMITTED
        sink.commit(handle)
        assert stage.seen() == {"a": "1", "b": "2", "c": "3"}
    assert Handle.parse(str(handle)) == handle
    assert owner(stage)["epoch"] == "3"


def test_abort_forgets_the_vote_and_leaves_the_rows(stage: RedisStage) -> None:
    sink = stage.sink()
    handle = stage.write(0, {"a": 1})
    for _ in range(2):
        sink.abort(handle)
        assert sink.verdict(handle) is Verdict.ABORTED
        with pytest.raises(AssentError, match="no longer holds the vote"):
            sink.commit(handle)
        assert stage.seen() == {"a": "1"}
    again = stage.write(0, {"a": 2}, term=1)
    sink.commit(again)
    assert stage.seen() == {"a": "2"}


def test_discard_leaves_no_vote(stage: RedisStage) -> None:
    sink = stage.sink()
    transaction = sink.begin(stage.name(), 0)
    sink.write(transaction, batch({"a": 1}))
    sink.discard(transaction)
    assert not [
        name
        for name in stage.server.client().hgetall(f"assent:owner:{stage.prefix}")
        if name.startswith("vote:")
    ]


def test_recovery_from_another_process(stage: RedisStage) -> None:
    """The process that wrote is killed; the text of its handle is all that is left."""
    script = textwrap.dedent(
        f"""
        import os, signal
        from tests.keyed_query import batch
        from assent import TransactionName
        from assent.sinks.redis import RedisSink
        sink = RedisSink({stage.server.url!r}, {stage.prefix!r}, "string", ["key"])
        transaction = sink.begin(TransactionName({stage.identity!r}, 0, 0, 0, "0000"), 0)
        sink.write(transaction, batch({{"a": 1}}))
        print(sink.pre_commit(transaction), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == -9, done.stderr
    stage.sink().recover_and_commit(Handle.parse(done.stdout.strip()), None)
    assert stage.seen() == {"a": "1"}


def test_a_handle_of_another_sink_is_refused(stage: RedisStage) -> None:
    handle = stage.write(0, {"a": 1})
    other = RedisStage(stage.server)
    with pytest.raises(ConfigurationError, match="another sink"):
        other.sink().commit(handle)
    with pytest.raises(ConfigurationError, match="does not say what it stands for"):
        stage.sink().commit(Handle("redis", "assent-0-1"))


# Replays and late writers


def test_a_replay_changes_nothing(stage: RedisStage) -> None:
    for term in (0, 0, 1, 2):
        handle = stage.write(5, {"a": 1, "b": 2}, term=term)
        stage.sink().commit(handle)
        assert stage.seen() == {"a": "1", "b": "2"}


def test_a_late_older_epoch_never_overwrites(stage: RedisStage) -> None:
    """The zombie began before the newer epoch, and writes after it."""
    sink = stage.sink()
    zombie = sink.begin(stage.name(), 4)
    sink.write(zombie, batch({"a": 4}))
    newer = stage.write(5, {"a": 5, "b": 5})
    with pytest.raises(FencedError, match="came too late"):
        sink.write(zombie, batch({"a": 40, "new": 40}))
    assert stage.seen() == {"a": "5", "b": "5"}
    with pytest.raises(FencedError):
        sink.pre_commit(zombie)
    sink.discard(zombie)
    sink.commit(newer)
    assert stage.seen() == {"a": "5", "b": "5"}


def test_a_late_vote_does_not_count(stage: RedisStage) -> None:
    """It wrote in time and votes too late: a newer epoch has begun, and has no rows yet."""
    sink = stage.sink()
    zombie = sink.begin(stage.name(), 4)
    sink.write(zombie, batch({"a": 4}))
    sink.begin(stage.name(), 5).nodes.close()
    with pytest.raises(FencedError, match="another run or query has gone on"):
        sink.pre_commit(zombie)
    sink.discard(zombie)


@pytest.mark.parametrize(("epoch", "term"), [(4, 9), (5, 0)])
def test_a_task_that_begins_late_is_refused(stage: RedisStage, epoch: int, term: int) -> None:
    stage.write(5, {"a": 5}, term=1)
    with pytest.raises(FencedError, match=rf"epoch 5 \(run 1\).*epoch {epoch} \(run {term}\)"):
        stage.write(epoch, {"a": 0}, term=term)
    assert stage.seen() == {"a": "5"}


def test_an_older_run_of_the_same_epoch_loses(stage: RedisStage) -> None:
    sink = stage.sink()
    zombie = sink.begin(stage.name(term=0), 4)
    stage.write(4, {"a": 2}, term=1)
    with pytest.raises(FencedError):
        sink.write(zombie, batch({"a": 1}))
    sink.discard(zombie)
    assert stage.seen() == {"a": "2"}


def test_late_after_the_newer_value_has_expired(stage: RedisStage) -> None:
    """Fences have no time to live: what has expired does not come back."""
    sink = stage.sink(ttl=0.05)
    zombie = sink.begin(stage.name(), 4)
    stage.write(5, {"a": 5}, ttl=0.05)
    while stage.seen():
        pass
    with pytest.raises(FencedError):
        sink.write(zombie, batch({"a": 4}))
    sink.discard(zombie)
    assert stage.seen() == {}


def test_two_attempts_at_once(stage: RedisStage) -> None:
    """Speculation: both write the same, both may vote; either is good."""
    failures: list[BaseException] = []
    handles: list[Handle] = []
    rows = {f"key-{number}": number for number in range(3000)}

    def attempt() -> None:
        try:
            handles.append(stage.write(1, rows))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [stage.sink().verdict(handle) for handle in handles] == [Verdict.COMMITTED] * 2
    assert stage.seen() == {key: str(number) for key, number in rows.items()}


def test_votes_of_older_epochs_are_forgotten_but_not_what_they_meant(stage: RedisStage) -> None:
    first = stage.write(0, {"a": 0})
    for epoch in range(1, 4):
        stage.write(epoch, {"a": epoch})
    assert stage.sink().verdict(first) is Verdict.COMMITTED
    held = stage.server.client().hgetall(f"assent:owner:{stage.prefix}")
    assert len([name for name in held if name.startswith("vote:")]) == 1


# Owners


def test_a_new_checkpoint_on_old_data_is_refused(stage: RedisStage) -> None:
    stage.write(7, {"a": 7})
    with pytest.raises(
        ConfigurationError, match=rf"belong to .*{stage.identity}.*takeOver to {stage.identity}-1"
    ):
        stage.write(0, {"a": 0}, identity=nonce())
    assert stage.seen() == {"a": "7"}
    assert owner(stage)["owner"] == stage.identity


def test_taken_over_knowingly_the_old_owner_loses(stage: RedisStage) -> None:
    old = stage.sink()
    late = old.begin(stage.name(), 8)
    stage.write(8, {"a": 8})
    newcomer = nonce()
    take = f"{stage.identity}-1"
    handle = stage.write(0, {"a": 0}, identity=newcomer, take_over=take)
    assert handle.details["base"] == "2"
    assert stage.seen() == {"a": "0"}
    with pytest.raises(FencedError):
        old.write(late, batch({"a": 80}))
    old.discard(late)
    with pytest.raises(ConfigurationError, match=f"belong to .*{newcomer}"):
        stage.write(9, {"a": 9})
    # The option may stay: it names whom it took over from, and nobody else.
    stage.write(1, {"a": 1}, identity=newcomer, take_over=take)
    with pytest.raises(ConfigurationError):
        stage.write(9, {"a": 9}, take_over=take)
    assert stage.seen() == {"a": "1"}


def test_an_older_checkpoint_restored_goes_on_over_newer_rows_when_asked(stage: RedisStage) -> None:
    stage.write(9, {"a": 9, "b": 9})
    with pytest.raises(FencedError, match=rf"restored.*takeOver={stage.identity}-1"):
        stage.write(4, {"a": 4})
    for epoch in (4, 5):
        stage.write(epoch, {"a": epoch}, take_over=f"{stage.identity}-1")
    assert owner(stage) == {
        "format": "1",
        "owner": stage.identity,
        "base": "2",
        "epoch": "5",
        "term": "0",
    }
    assert stage.seen() == {"a": "5", "b": "9"}


def test_the_verdict_after_a_takeover_is_unknown(stage: RedisStage) -> None:
    handle = stage.write(0, {"a": 0})
    stage.write(0, {"a": 1}, identity=nonce(), take_over=f"{stage.identity}-1")
    assert stage.sink().verdict(handle) is Verdict.UNKNOWN


def test_keys_that_nobody_owns_are_refused_or_taken_over(stage: RedisStage) -> None:
    client = stage.server.client()
    client.set(f"{stage.prefix}a", "theirs")
    with pytest.raises(ConfigurationError, match=rf"'{stage.prefix}a'.*takeOver to unowned"):
        stage.sink().check(batch({}).schema)
    stage.sink(take_over="unowned").check(batch({}).schema)
    stage.write(0, {"a": 0}, take_over="unowned")
    stage.sink().check(batch({}).schema)
    assert stage.seen() == {"a": "0"}


def test_a_prefix_is_no_pattern(redis_server: RedisServer) -> None:
    stage = RedisStage(redis_server)
    stage.prefix = f"{nonce()}[ab]*?\\"
    redis_server.client().set(f"{stage.prefix.replace('[ab]', 'a')}x", "1")
    stage.sink().check(batch({}).schema)
    redis_server.client().set(f"{stage.prefix}x", "1")
    with pytest.raises(ConfigurationError, match="no query of Assent has written"):
        stage.sink().check(batch({}).schema)


def test_an_owner_noted_by_a_newer_release(stage: RedisStage) -> None:
    stage.server.client().hset(f"assent:owner:{stage.prefix}", "format", "2")
    with pytest.raises(AssentError, match="format 2, and this release reads 1"):
        stage.write(0, {"a": 0})


# The coordinator over it


def test_killed_before_the_decision_the_next_run_writes_again(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    stage = RedisStage(redis_server)
    query = KeyedQuery(stage, tmp_path)
    query.run(query.start(), 0, [{"a": 0}])
    query.die(When.BEFORE, Step.DECIDE, 1, [{"a": 1}, {"b": 1}])
    assert stage.seen() == {"a": "1", "b": "1"}
    query.run(query.start(), 1, [{"a": 1}, {"b": 1}])
    query.run(query.start(), 2, [{"a": 2}])
    assert stage.seen() == {"a": "2", "b": "1"}


def test_killed_after_the_decision_the_next_run_writes_nothing(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    stage = RedisStage(redis_server)
    query = KeyedQuery(stage, tmp_path)
    query.die(When.AFTER, Step.DECIDE, 0, [{"a": 1}])
    redis_server.client().set(f"{stage.prefix}a", "marked")
    query.run(query.start(), 0, [{"a": 1}])
    assert stage.seen() == {"a": "marked"}


def test_two_drivers_at_once(redis_server: RedisServer, tmp_path: Path) -> None:
    stage = RedisStage(redis_server)
    query = KeyedQuery(stage, tmp_path)
    first = query.start()
    assignment = query.plan(first, 0)
    votes = query.write(assignment, 0, [{"a": 1}])
    query.run(query.start(), 0, [{"a": 1}])
    with pytest.raises(FencedError):
        first.commit(votes, 0)
    with pytest.raises(FencedError):
        query.write(assignment, 0, [{"a": 1}], attempt=1)
    assert stage.seen() == {"a": "1"}


def test_a_restored_checkpoint_is_seen_by_the_store(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The whole checkpoint, ledger and all, is an older one: only the store knows better."""
    stage = RedisStage(redis_server)
    query = KeyedQuery(stage, tmp_path)
    coordinator = query.start()
    for epoch in range(3):
        query.run(coordinator, epoch, [{"a": epoch}])
    older = KeyedQuery(stage, tmp_path / "restored")
    with pytest.raises(ConfigurationError, match="belong to"):
        older.run(older.start(), 0, [{"a": 0}])
    assert stage.seen() == {"a": "2"}


# A server that crashes


def test_killed_and_restarted_everything_is_still_there(
    start_redis: StartServer, tmp_path: Path
) -> None:
    server = start_redis({})
    stage = RedisStage(server)
    query = KeyedQuery(stage, tmp_path)
    query.die(When.AFTER, Step.DECIDE, 0, [{"a": 1}, {"b": 2}])
    server.kill()
    server.start()
    query.run(query.start(), 0, [{"a": 1}, {"b": 2}])
    assert stage.seen() == {"a": "1", "b": "2"}
    query.run(query.start(), 1, [{"a": 3}])
    assert stage.seen() == {"a": "3", "b": "2"}


def test_what_a_task_has_voted_for_survives_a_kill_at_once(start_redis: StartServer) -> None:
    server = start_redis({})
    if waits_for_disk(server):
        server.client().config_set("appendfsync", "everysec")
    stage = RedisStage(server)
    rows = {f"key-{number}": number for number in range(2000)}
    handle = stage.write(0, rows)
    server.kill()
    server.start()
    assert stage.seen() == {key: str(number) for key, number in rows.items()}
    assert stage.sink().verdict(handle) is Verdict.COMMITTED


def test_what_the_server_lost_before_the_commit_is_written_again(
    start_redis: StartServer, tmp_path: Path
) -> None:
    """Without an append-only file all of the epoch is gone, and its votes with it."""
    server = start_redis({"appendonly": "no", "save": ""})
    stage = RedisStage(server)
    query = KeyedQuery(stage, tmp_path, durability="memory")
    query.run(query.start(), 0, [{"a": 0}])
    server.client().save()
    query.die(When.AFTER, Step.DECIDE, 1, [{"a": 1}, {"b": 1}])
    server.kill()
    server.start()
    assert stage.seen() == {"a": "0"}
    coordinator = query.start()
    assignment = query.plan(coordinator, 1)
    assert assignment.decided is not None
    assert assignment.decided.torn is not None
    coordinator.commit(query.write(assignment, 1, [{"a": 1}, {"b": 1}]), 1)
    assert stage.seen() == {"a": "1", "b": "1"}


def test_a_store_that_was_emptied_after_the_decision_is_in_doubt(
    start_redis: StartServer, tmp_path: Path
) -> None:
    server = start_redis({})
    stage = RedisStage(server)
    query = KeyedQuery(stage, tmp_path)
    query.run(query.start(), 0, [{"a": 0}])
    query.die(When.AFTER, Step.DECIDE, 1, [{"a": 1}])
    server.client().flushall()
    with pytest.raises(InDoubtError, match=r"no longer knows"):
        query.plan(query.start(), 1)


def test_a_server_restarted_while_a_task_writes(start_redis: StartServer) -> None:
    """It may have lost what it answered for: the task fails, and is run again."""
    server = start_redis({"appendfsync": "everysec"})
    stage = RedisStage(server)
    sink = stage.sink(durability="memory")
    transaction = sink.begin(stage.name(), 0)
    sink.write(transaction, batch({"a": 1}))
    server.kill()
    server.start()
    sink.write(transaction, batch({"b": 2}))
    with pytest.raises(RetriableError, match="restarted or replaced"):
        sink.pre_commit(transaction)
    sink.discard(transaction)
    stage.write(0, {"a": 1, "b": 2}, durability="memory")
    assert stage.seen() == {"a": "1", "b": "2"}


def test_a_connection_that_is_cut_is_made_again(stage: RedisStage) -> None:
    sink = stage.sink()
    transaction = sink.begin(stage.name(), 0)
    sink.write(transaction, batch({"a": 1}))
    assert stage.server.client().execute_command("CLIENT", "KILL", "TYPE", "normal") >= 1
    sink.write(transaction, batch({"b": 2}))
    sink.commit(sink.pre_commit(transaction))
    assert stage.seen() == {"a": "1", "b": "2"}


def test_scripts_that_the_server_forgot_are_sent_again(stage: RedisStage) -> None:
    sink = stage.sink()
    transaction = sink.begin(stage.name(), 0)
    sink.write(transaction, batch({"a": 1}))
    stage.server.client().script_flush()
    sink.write(transaction, batch({"b": 2}))
    sink.commit(sink.pre_commit(transaction))
    assert stage.seen() == {"a": "1", "b": "2"}


def test_a_server_that_is_paused_or_gone(start_redis: StartServer) -> None:
    server = start_redis({})
    stage = RedisStage(server)
    handle = stage.write(0, {"a": 1})
    server.pause()
    with pytest.raises(RetriableError, match=r"cannot be used for now .*option timeout"):
        stage.sink(timeout=0.3).verdict(handle)
    server.resume()
    assert stage.sink().verdict(handle) is Verdict.COMMITTED
    server.kill()
    with pytest.raises(RetriableError, match=rf"127\.0\.0\.1:{server.port}"):
        stage.sink(timeout=0.3).begin(stage.name(), 1)


def test_a_server_that_comes_back_in_time(start_redis: StartServer) -> None:
    server = start_redis({})
    stage = RedisStage(server)
    server.kill()
    restart = threading.Timer(0.3, server.start)
    restart.start()
    stage.write(0, {"a": 1})
    restart.join()
    assert stage.seen() == {"a": "1"}


def test_a_server_without_memory(start_redis: StartServer) -> None:
    server = start_redis({})
    stage = RedisStage(server)
    server.client().config_set("maxmemory", "1mb")
    with pytest.raises(RetriableError, match="no memory left"):
        stage.write(0, {"a": 1})


# The other guarantees


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_without_a_ledger(stage: RedisStage, guarantee: Guarantee) -> None:
    sink = stage.sink()
    sink.guarantee = guarantee
    sink.check(batch({}).schema)
    for number in (1, 2, 1):
        transaction = sink.begin(stage.name(identity=nonce()), 0)
        sink.write(transaction, batch({"a": number}))
        handle = sink.pre_commit(transaction)
        sink.commit(handle)
        sink.abort(handle)
        assert stage.seen() == {"a": str(number)}
    with pytest.raises(ConfigurationError, match="queries without exactly_once"):
        stage.write(0, {"a": 3})
    stage.write(0, {"a": 3}, take_over="unguarded-1")
    with pytest.raises(ConfigurationError, match="belong to"):
        sink.begin(stage.name(), 0)
    assert stage.seen() == {"a": "3"}


# A cluster


def test_on_a_cluster(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    stage = RedisStage(redis_cluster)
    stage.sink().check(batch({}).schema)
    rows = {f"key-{number}": number for number in range(5000)}
    handle = stage.write(1, rows)
    stage.sink().commit(handle)
    assert stage.seen() == {key: str(number) for key, number in rows.items()}
    for node in redis_cluster.nodes:
        assert node.client().dbsize() > 1000
    stage = RedisStage(redis_cluster)
    query = KeyedQuery(stage, tmp_path)
    query.die(When.BEFORE, Step.DECIDE, 0, [{"a": 1}, {"b": 1}])
    query.run(query.start(), 0, [{"a": 1}, {"b": 1}])
    assert stage.seen() == {"a": "1", "b": "1"}


def test_late_writers_on_a_cluster(
    redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assent.sinks.redis_transaction._PIPELINE_ROWS", 1)  # nothing waits
    stage = RedisStage(redis_cluster)
    sink = stage.sink()
    zombie = sink.begin(stage.name(), 4)
    keys = [f"key-{number}" for number in range(200)]
    stage.write(5, dict.fromkeys(keys, 5))
    for key in keys:
        with pytest.raises(FencedError):
            sink.write(zombie, batch({key: 4}))
    sink.discard(zombie)
    assert stage.seen() == dict.fromkeys(keys, "5")


def test_a_prefix_with_a_hash_tag_keeps_all_keys_in_one_slot(redis_cluster: RedisCluster) -> None:
    stage = RedisStage(redis_cluster)
    stage.prefix = f"{{{nonce()}}}:"
    stage.write(0, {f"key-{number}": number for number in range(1500)})
    client = redis_cluster.client()
    slots = {client.keyslot(stage.prefix + key) for key in stage.seen()}
    assert len(slots) == 1
    tags = [key for key in client.scan_iter("assent:fence:*") if key.endswith(stage.prefix)]
    assert [client.keyslot(tag) for tag in tags] == list(slots)


def test_a_slot_that_moves_while_a_task_writes(redis_cluster: RedisCluster) -> None:
    stage = RedisStage(redis_cluster)
    client = redis_cluster.client()
    nodes = {node.port: node.client() for node in redis_cluster.nodes}
    while True:  # until a slot is found that no other test has used
        stage.prefix = f"{{{nonce()}}}:"
        slot = client.keyslot(stage.prefix)
        source = client.get_node_from_key(stage.prefix).port
        if not nodes[source].execute_command("CLUSTER", "COUNTKEYSINSLOT", slot):
            break
    sink = stage.sink()
    transaction = sink.begin(stage.name(), 0)
    target = next(port for port in nodes if port != source)
    identity = nodes[target].execute_command("CLUSTER", "MYID")
    nodes[target].execute_command(
        *("CLUSTER", "SETSLOT", slot, "IMPORTING", nodes[source].execute_command("CLUSTER", "MYID"))
    )
    nodes[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", identity)
    owned = f"assent:owner:{stage.prefix}"
    nodes[source].execute_command("MIGRATE", "127.0.0.1", target, owned, 0, 5000)
    for node in (nodes[target], *nodes.values()):
        node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", identity)
    sink.write(transaction, batch({"a": 1}))
    sink.commit(sink.pre_commit(transaction))
    assert redis_cluster.client().get(f"{stage.prefix}a") == "1"
