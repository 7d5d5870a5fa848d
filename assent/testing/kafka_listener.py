"""A listener of a test broker with TLS, SASL or both, and what clients need to use it."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from assent.testing.jars import java
from assent.testing.server import ServerFailure

_ALIAS = "broker"


@dataclass(frozen=True)
class ClientListener:
    """SASL users by name and password, and whether the connection is encrypted.

    OAUTHBEARER takes unsigned tokens, and SCRAM comes in one strength at a time. With
    `authorize`, users may do only what access rules allow, which at the start is nothing.
    """

    tls: bool = True
    mechanisms: tuple[str, ...] = ("SCRAM-SHA-512",)
    users: Mapping[str, str] = field(
        default_factory=lambda: {"alice": secrets.token_hex(12)}, repr=False
    )
    authorize: bool = False

    @property
    def protocol(self) -> str:
        transport = "SSL" if self.tls else "PLAINTEXT"
        return f"SASL_{transport}" if self.mechanisms else transport

    def prepare(self, folder: Path) -> None:
        """Make the broker's certificate, if one is needed."""
        if not self.tls:
            return
        store = self._store(folder)
        _keytool(
            "-genkeypair",
            *("-keyalg", "EC", "-validity", "2", "-dname", "CN=localhost"),
            *("-ext", "san=dns:localhost,ip:127.0.0.1"),
            *store,
        )
        _keytool("-exportcert", "-rfc", "-file", str(folder / "broker.pem"), *store)

    def format_arguments(self) -> list[str]:
        """What makes `StorageTool format` create the users."""
        return [
            argument
            for mechanism in self.mechanisms
            if mechanism.startswith("SCRAM")
            for name, password in self.users.items()
            for argument in ("-S", f"{mechanism}=[name={name},password={password}]")
        ]

    def broker_properties(self, folder: Path) -> dict[str, str]:
        properties: dict[str, str] = {}
        if self.tls:
            properties |= {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(folder / "broker.p12"),
                "ssl.keystore.password": "changeit",
            }
        if self.mechanisms:
            properties["sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
        for mechanism in self.mechanisms:
            name = f"listener.name.client.{mechanism.lower()}.sasl.jaas.config"
            properties[name] = self._jaas(mechanism)
        if self.authorize:
            properties |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                # Brokers and tests, who use the plain listener.
                "super.users": "User:ANONYMOUS",
            }
        return properties

    def client_settings(self, folder: Path) -> dict[str, str]:
        """As the first user, by the first mechanism, in librdkafka's terms."""
        settings = {"security.protocol": self.protocol}
        if self.tls:
            settings["ssl.ca.location"] = str(folder / "broker.pem")
        if self.mechanisms:
            name, password = next(iter(self.users.items()))
            settings |= {
                "sasl.mechanism": self.mechanisms[0],
                "sasl.username": name,
                "sasl.password": password,
            }
        return settings

    def _jaas(self, mechanism: str) -> str:
        package = "org.apache.kafka.common.security"
        if mechanism == "OAUTHBEARER":
            claim = 'unsecuredLoginStringClaim_sub="broker"'
            return f"{package}.oauthbearer.OAuthBearerLoginModule required {claim};"
        if mechanism == "PLAIN":
            users = " ".join(f'user_{name}="{word}"' for name, word in self.users.items())
            return f"{package}.plain.PlainLoginModule required {users};"
        return f"{package}.scram.ScramLoginModule required;"

    def _store(self, folder: Path) -> list[str]:
        location = str(folder / "broker.p12")
        return [
            *("-keystore", location, "-storetype", "PKCS12", "-storepass", "changeit"),
            *("-alias", _ALIAS),
        ]


def _keytool(*arguments: str) -> None:
    done = subprocess.run(
        [java("keytool"), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise ServerFailure(f"keytool {arguments[0]} failed: {done.stdout}{done.stderr}")
