"""Authentication of connections: the ZAP handler (ZeroMQ RFC 27) that knows the two client keys of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from rlctl_agents.wire.keys import DOMAIN


class Admission(ThreadAuthenticator):
    """ZAP handler in a thread of its own: admits connections by their key, and gives the messages that come over them
    the key class as their User-Id.

    Args:
        context: of the sockets that listen; it can have one handler.
        admitted: public key in z85 -> key class.
        refused: called in that thread with the address of a connection whose key is not admitted.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], admitted: Mapping[str, str], refused: Callable[[str], None]
    ) -> None:
        super().__init__(context)
        self._classes = {key.encode(): whose for key, whose in admitted.items()}
        self._refused = refused
        self._from = ""
        self.configure_curve_callback(domain=DOMAIN, credentials_provider=self)

    async def handle_zap_message(self, msg: list[bytes]) -> None:
        """Handle one request of libzmq: version, request id, domain, address, routing id, mechanism, key."""
        self._from = msg[3].decode("utf-8", "replace") if len(msg) > 3 else "somewhere"
        await super().handle_zap_message(msg)

    def callback(self, domain: str, key: bytes) -> bool:
        """True if the key, which comes in z85 already, is admitted."""
        if key in self._classes:
            return True
        self._refused(self._from)
        return False

    def curve_user_id(self, client_public_key: bytes) -> str:
        """The class of a key, which comes as raw bytes here."""
        return self._classes[z85.encode(client_public_key)]

    def end(self) -> None:
        """Stop the thread and close its sockets."""
        if self.pipe and not self.is_alive():  # it died: no thread reads what `stop` would write
            self.pipe.close(0)
            self.pipe = None  # type: ignore[assignment]
        self.stop()
