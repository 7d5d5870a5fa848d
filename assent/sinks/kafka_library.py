"""The C library librdkafka, as it lies inside the confluent-kafka wheel.

Only its public, stable interface is used: functions, and the two structures that applications
fill themselves. Nothing is assumed of the layout of confluent-kafka's Python objects.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

# Flags and numbers of rdkafka.h, where applications are compiled with them.
PRODUCER = 0
MSG_F_COPY = 0x2
MSG_F_PARTITION = 0x8
PURGE_F_QUEUE = 0x1
PURGE_F_INFLIGHT = 0x2
PURGE_F_NON_BLOCKING = 0x4
EVENT_DR = 0x1
EVENT_LOG = 0x4
EVENT_ERROR = 0x8
EVENT_STATS = 0x40
EVENT_TOKEN_REFRESH = 0x100

ERR_QUEUE_FULL = -184
ERR_FATAL = -150

VTYPE_RKT = 2
VTYPE_PARTITION = 3
VTYPE_VALUE = 4
VTYPE_KEY = 5
VTYPE_MSGFLAGS = 7
VTYPE_TIMESTAMP = 8
VTYPE_HEADER = 9

MESSAGE = np.dtype(
    [
        ("err", np.int32),
        ("rkt", np.uint64),
        ("partition", np.int32),
        ("payload", np.uint64),
        ("len", np.uint64),
        ("key", np.uint64),
        ("key_len", np.uint64),
        ("offset", np.int64),
        ("private", np.uint64),
    ],
    align=True,
)
"""rd_kafka_message_t"""

ARGUMENT = np.dtype(
    {
        "names": ["type", "first", "second", "third"],
        "formats": [np.int32, np.uint64, np.uint64, np.uint64],
        "offsets": [0, 8, 16, 24],
        "itemsize": 72,
    }
)
"""rd_kafka_vu_t: the union's members begin with one, two or three words."""


class Message(ctypes.Structure):
    """rd_kafka_message_t, for reading one."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


class MetadataTopic(ctypes.Structure):
    """rd_kafka_metadata_topic_t"""

    _fields_ = (
        ("topic", c_char_p),
        ("partition_count", c_int),
        ("partitions", c_void_p),
        ("err", c_int),
    )


class Metadata(ctypes.Structure):
    """rd_kafka_metadata_t, as far as it is read."""

    _fields_ = (
        ("broker_count", c_int),
        ("brokers", c_void_p),
        ("topic_count", c_int),
        ("topics", POINTER(MetadataTopic)),
    )


_STRING = POINTER(c_char_p)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_version": (c_int, ()),
    "rd_kafka_err2str": (c_char_p, (c_int,)),
    "rd_kafka_err2name": (c_char_p, (c_int,)),
    "rd_kafka_error_code": (c_int, (c_void_p,)),
    "rd_kafka_error_string": (c_char_p, (c_void_p,)),
    "rd_kafka_error_is_retriable": (c_int, (c_void_p,)),
    "rd_kafka_error_destroy": (None, (c_void_p,)),
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_conf_set_events": (None, (c_void_p, c_int)),
    "rd_kafka_conf_destroy": (None, (c_void_p,)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_destroy": (None, (c_void_p,)),
    "rd_kafka_set_log_queue": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_queue_get_main": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_poll": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_queue_destroy": (None, (c_void_p,)),
    "rd_kafka_event_type": (c_int, (c_void_p,)),
    "rd_kafka_event_error": (c_int, (c_void_p,)),
    "rd_kafka_event_error_string": (c_char_p, (c_void_p,)),
    "rd_kafka_event_stats": (c_char_p, (c_void_p,)),
    "rd_kafka_event_log": (c_int, (c_void_p, _STRING, _STRING, POINTER(c_int))),
    "rd_kafka_event_message_next": (POINTER(Message), (c_void_p,)),
    "rd_kafka_event_config_string": (c_char_p, (c_void_p,)),
    "rd_kafka_event_destroy": (None, (c_void_p,)),
    "rd_kafka_oauthbearer_set_token": (
        c_int,
        (c_void_p, c_char_p, c_int64, c_char_p, _STRING, c_size_t, c_char_p, c_size_t),
    ),
    "rd_kafka_oauthbearer_set_token_failure": (c_int, (c_void_p, c_char_p)),
    "rd_kafka_fatal_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "rd_kafka_topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "rd_kafka_topic_name": (c_char_p, (c_void_p,)),
    "rd_kafka_topic_destroy": (None, (c_void_p,)),
    "rd_kafka_metadata": (
        c_int,
        (c_void_p, c_int, c_void_p, POINTER(POINTER(Metadata)), c_int),
    ),
    "rd_kafka_metadata_destroy": (None, (POINTER(Metadata),)),
    "rd_kafka_init_transactions": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_begin_transaction": (c_void_p, (c_void_p,)),
    "rd_kafka_produce_batch": (c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    "rd_kafka_produceva": (c_void_p, (c_void_p, c_void_p, c_size_t)),
    "rd_kafka_flush": (c_int, (c_void_p, c_int)),
    "rd_kafka_purge": (c_int, (c_void_p, c_int)),
    "rd_kafka_outq_len": (c_int, (c_void_p,)),
}


class LibraryError(Exception):
    """The C library cannot be used; the message says why."""


class Library:
    """The functions of librdkafka, by their names without `rd_kafka_`.

    They release the interpreter's lock, but for `produceva`, which is called once per row and
    never blocks.
    """

    def __init__(self, path: str, version: int) -> None:
        if sys.byteorder != "little" or ctypes.sizeof(c_void_p) != 8:
            raise LibraryError("it is used on little-endian machines of 64 bits alone")
        try:
            # The handle of confluent-kafka's extension module finds the symbols of what that
            # was linked against: the same library, wherever the wheel has put it.
            shared, locked = ctypes.CDLL(path), ctypes.PyDLL(path)
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(locked if name.endswith("_produceva") else shared, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name.removeprefix("rd_kafka_"), function)
        except (OSError, AttributeError) as error:
            raise LibraryError(str(error)) from error
        found = int(self.version())
        if found != version:
            raise LibraryError(
                f"its version is {found:#x}, and confluent-kafka was built for {version:#x}"
            )
        if MESSAGE.itemsize != ctypes.sizeof(Message):
            raise LibraryError("the layout of its messages is another one")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"librdkafka's {name} is not declared here")


@functools.cache
def library() -> Library:
    """The library, loaded once; LibraryError if it cannot be."""
    from confluent_kafka import cimpl, libversion

    return Library(str(cimpl.__file__), libversion()[1])
