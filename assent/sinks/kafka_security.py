"""Who we are to a Kafka broker, and how we know it: librdkafka's settings, for kafka-python."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider

from assent.protocol.errors import ConfigurationError
from assent.sinks.kafka_client import TokenFunction

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
# What librdkafka can read and Python's TLS cannot, with what both can.
_UNREADABLE = {
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location",
    "ssl.engine.location": "ssl.certificate.location and ssl.key.location",
    "ssl.providers": "ssl.certificate.location and ssl.key.location",
}


@dataclass(frozen=True)
class KafkaSecurity:
    """The security settings of a client, checked. Neither its repr nor its errors show secrets."""

    protocol: str
    mechanism: str = ""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    token: TokenFunction | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(cls, settings: Mapping[str, str], token: TokenFunction | None = None) -> KafkaSecurity:
        """Take what matters out of librdkafka's settings; `token` is for OAUTHBEARER."""
        protocol = settings.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in _PROTOCOLS:
            raise ConfigurationError(
                f"option kafka.security.protocol is {protocol!r}; expected one of "
                f"{', '.join(_PROTOCOLS)}"
            )
        mechanism = ""
        if protocol.startswith("SASL_"):
            mechanism = _read_mechanism(settings, token)
        if protocol.endswith("SSL"):
            for name, instead in _UNREADABLE.items():
                if name in settings:
                    raise ConfigurationError(
                        f"option kafka.{name} reaches only half of the sink: transactions are "
                        f"committed through Python's own TLS. Use {instead} (PEM files) instead"
                    )
        relevant = {
            name: value for name, value in settings.items() if name.startswith(("ssl.", "sasl."))
        }
        if "enable.ssl.certificate.verification" in settings:
            name = "enable.ssl.certificate.verification"
            relevant[name] = settings[name]
        return cls(protocol, mechanism, relevant, token)

    def tls(self) -> ssl.SSLContext | None:
        """How to wrap a socket; None where the protocol does not ask for it."""
        if not self.protocol.endswith("SSL"):
            return None
        setting = self.settings.get
        location = setting("ssl.ca.location")
        try:
            if location in (None, "", "probe"):
                context = ssl.create_default_context(cadata=setting("ssl.ca.pem"))
            elif os.path.isdir(str(location)):
                context = ssl.create_default_context(capath=location)
            else:
                context = ssl.create_default_context(cafile=location)
        except (OSError, ValueError) as error:
            raise _unreadable("kafka.ssl.ca.location (or kafka.ssl.ca.pem)", error) from None
        if setting("ssl.endpoint.identification.algorithm", "https").lower() == "none":
            context.check_hostname = False
        if setting("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        try:
            self._load_certificate(context)
        except (OSError, ValueError) as error:
            raise _unreadable("kafka.ssl.certificate.* and kafka.ssl.key.*", error) from None
        return context

    def mechanism_for(self, host: str) -> Any:
        """One exchange of kafka-python's SASL, with one broker."""
        return get_sasl_mechanism(self.mechanism)(
            host=host,
            sasl_mechanism=self.mechanism,
            sasl_plain_username=self.settings.get("sasl.username", ""),
            sasl_plain_password=self.settings.get("sasl.password", ""),
            sasl_oauth_token_provider=_Tokens(self),
        )

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        setting = self.settings.get
        certificate, key = setting("ssl.certificate.location"), setting("ssl.key.location")
        text = "\n".join(filter(None, (setting("ssl.key.pem"), setting("ssl.certificate.pem"))))
        # Never let OpenSSL ask the terminal for it.
        password = setting("ssl.key.password", "")
        if certificate:
            context.load_cert_chain(certificate, key, password)
        elif text:
            # Python reads certificates from files only.
            with tempfile.NamedTemporaryFile("w", prefix="assent-", suffix=".pem") as file:
                file.write(text)
                file.flush()
                context.load_cert_chain(file.name, None, password)


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Hands the user's token function to kafka-python."""

    def __init__(self, security: KafkaSecurity) -> None:
        self._security = security
        self._extensions: Mapping[str, str] = {}

    def token(self) -> str:
        assert self._security.token is not None
        answer = self._security.token(self._security.settings.get("sasl.oauthbearer.config", ""))
        if len(answer) > 3 and isinstance(answer[3], Mapping):
            self._extensions = answer[3]
        return str(answer[0])

    def extensions(self) -> Mapping[str, str]:
        return self._extensions


def _read_mechanism(settings: Mapping[str, str], token: TokenFunction | None) -> str:
    given = settings.get("sasl.mechanisms", settings.get("sasl.mechanism", ""))
    mechanism = given.upper()
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(
            f"option kafka.sasl.mechanism is {given!r}; expected one of {', '.join(_MECHANISMS)}"
        )
    if mechanism == "OAUTHBEARER":
        if token is None:
            raise ConfigurationError(
                "kafka.sasl.mechanism=OAUTHBEARER needs a token function: transactions are "
                "committed through a client that cannot fetch tokens by itself"
            )
        return mechanism
    for name in ("sasl.username", "sasl.password"):
        if not settings.get(name):
            raise ConfigurationError(
                f"option kafka.{name} is missing; kafka.sasl.mechanism={mechanism} needs it"
            )
    return mechanism


def _unreadable(options: str, error: Exception) -> ConfigurationError:
    # The error's own text may quote a file's name, never its content.
    return ConfigurationError(f"what {options} name cannot be read: {error}")
