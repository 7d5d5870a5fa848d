"""TLS and SASL on the control plane, against a real broker; secrets are told to nobody."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from assent.protocol.errors import AssentError, ConfigurationError
from assent.protocol.name import nonce
from assent.protocol.verdict import Verdict
from assent.sinks.kafka_control import KafkaControl
from assent.sinks.kafka_security import KafkaSecurity
from assent.testing.kafka import KafkaCluster
from assent.testing.kafka_listener import ClientListener
from tests.kafka_kit import await_visible, open_transaction, visible
from tests.plugins.kafka import require_kafka

_PASSWORD = f"secret-{nonce()}"
_TOPIC = "guarded"


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """A listener with TLS and SASL, whose users may write where access rules let them."""
    listener = ClientListener(
        mechanisms=("SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"),
        users={"alice": _PASSWORD, "mallory": _PASSWORD},
        authorize=True,
    )
    with require_kafka(listener=listener) as cluster:
        cluster.create_topic(_TOPIC)
        _allow(cluster, "alice", ResourceType.TOPIC, _TOPIC, "READ", "WRITE", "DESCRIBE")
        _allow(cluster, "alice", ResourceType.TRANSACTIONAL_ID, "assent-", "WRITE", "DESCRIBE")
        _allow(cluster, "alice", ResourceType.GROUP, "tests", "READ")
        yield cluster


def _allow(
    cluster: KafkaCluster, user: str, kind: ResourceType, prefix: str, *operations: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    rules = [
        AclBinding(
            kind,
            prefix,
            ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    for done in admin.create_acls(rules).values():
        done.result(30)


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_commit_over_tls_with_a_password(guarded: KafkaCluster, mechanism: str) -> None:
    settings = {**guarded.settings(), "sasl.mechanism": mechanism}
    before = visible(settings, _TOPIC)
    opened = open_transaction(settings, f"assent-{nonce()}-0", _TOPIC, ["a"])
    with KafkaControl(settings) as control:
        assert control.verdict(*opened.handle) is Verdict.PENDING
        assert len(control.transactions(opened.transactional_id)) == 1
        control.commit(*opened.handle)
        assert control.verdict(*opened.handle) is Verdict.COMMITTED
        topic = control.brokers.topic(_TOPIC)
        assert topic is not None
        assert topic.may_write
    await_visible(settings, _TOPIC, *before, "a")


@pytest.mark.kafka
def test_commit_with_a_token_function(guarded: KafkaCluster) -> None:
    asked: list[str] = []

    def token(configuration: str) -> tuple[object, ...]:
        asked.append(configuration)
        claims = {"sub": "alice", "iat": time.time() - 10, "exp": time.time() + 300}
        parts = ({"alg": "none"}, claims)
        text = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts]
        return b".".join(part.rstrip(b"=") for part in text).decode() + ".", claims["exp"]

    opened = open_transaction(guarded.settings(), f"assent-{nonce()}-0", _TOPIC, ["a"])
    settings = {**guarded.settings(), "sasl.mechanism": "OAUTHBEARER"}
    settings["sasl.oauthbearer.config"] = "scope=rows"
    with KafkaControl(settings, token) as control:
        control.abort(*opened.handle)
        assert control.verdict(*opened.handle) is Verdict.ABORTED
    assert set(asked) == {"scope=rows"}


@pytest.mark.kafka
def test_without_permission_the_error_says_what_is_needed(guarded: KafkaCluster) -> None:
    opened = open_transaction(guarded.settings(), f"assent-{nonce()}-0", _TOPIC, ["a"])
    with KafkaControl({**guarded.settings(), "sasl.username": "mallory"}) as control:
        for call in (control.commit, control.abort, control.verdict):
            with pytest.raises(
                ConfigurationError, match=r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED.*Write"
            ):
                call(*opened.handle)
        # Brokers do not say that something is hidden.
        assert control.transactions("assent-") == []
        with pytest.raises(ConfigurationError, match="Describe and Write"):
            control.brokers.topic(_TOPIC)
        # Settings of brokers are not for everyone: what may not be seen is missing.
        assert control.brokers.cluster(["transaction.max.timeout.ms"]).settings == {}
    with KafkaControl(guarded.settings()) as control:
        assert control.verdict(*opened.handle) is Verdict.PENDING
        control.abort(*opened.handle)


@pytest.mark.kafka
def test_no_secret_leaves_the_settings(
    guarded: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good = guarded.settings()
    wrong = f"wrong-{nonce()}"
    refused = [
        ({**good, "sasl.password": wrong}, "refused the login by SCRAM-SHA-512"),
        ({**good, "sasl.mechanism": "PLAIN", "sasl.password": wrong}, "refused the login by PLAIN"),
        ({**good, "sasl.mechanism": "SCRAM-SHA-256"}, "does not offer.*SCRAM-SHA-256"),
        ({**good, "ssl.ca.location": ssl.get_default_verify_paths().openssl_cafile}, "not trusted"),
    ]
    for settings, message in refused:
        control = KafkaControl(settings, timeout=5)
        with pytest.raises(ConfigurationError, match=message) as caught:
            control.describe("assent-x")
        told = f"{caught.value} {control!r} {control.brokers!r} {KafkaSecurity.read(settings)!r}"
        assert _PASSWORD not in told
        assert wrong not in told
        control.close()
    with KafkaControl({**good, "sasl.mechanism": "PLAIN"}) as control:
        assert control.describe("assent-x") is None
    assert _PASSWORD not in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "TLS"}, r"kafka\.security\.protocol is 'TLS'.*SASL_SSL"),
        ({"security.protocol": "sasl_ssl"}, r"kafka\.sasl\.mechanism is ''.*SCRAM-SHA-512"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            r"is 'GSSAPI'; expected one of PLAIN",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a"},
            r"kafka\.sasl\.password is missing",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "needs a token function",
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "a.p12"},
            r"kafka\.ssl\.keystore\.location reaches only half.*PEM",
        ),
        ({"bootstrap.servers": " , "}, r"kafka\.bootstrap\.servers names no broker"),
        ({"socket.timeout.ms": "soon"}, r"kafka\.socket\.timeout\.ms is 'soon'"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KafkaControl({"bootstrap.servers": "localhost:1", **settings})


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    tls = {"bootstrap.servers": "localhost:1", "security.protocol": "SSL"}
    missing = {**tls, "ssl.ca.location": str(tmp_path / "none.pem")}
    with pytest.raises(ConfigurationError, match=r"kafka\.ssl\.ca\.location"):
        KafkaSecurity.read(missing).tls()
    text = f"-----BEGIN PRIVATE KEY-----\n{_PASSWORD}\n-----END PRIVATE KEY-----"
    with pytest.raises(AssentError, match=r"kafka\.ssl\.key") as caught:
        KafkaSecurity.read({**tls, "ssl.key.pem": text}).tls()
    assert _PASSWORD not in str(caught.value)
