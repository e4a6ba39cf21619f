"""Keys: files that say who somebody is, and a server's list of whom it lets in.

Owns: key files (``Keys``), the list (``Allowed``), and what a key lets its owner do (``Guard``, pure). A key is a CURVE key pair; its
public half is the identity of its owner. A secret is read from a file that only its owner can read, and shown nowhere: text that people
see has a ``fingerprint``. Must not know: messages but for hellos. Next: ``gate`` (who is asked at a handshake), ``dispatcher``.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from gt.runtime import env, wire
from gt.runtime.errors import KeyFileError
from gt.runtime.private import NotPrivate, private_folder, read_private, write_private

DOMAIN = b"gt"
MAX_FILE = 1 << 20
ROLES = ("client", "worker")
SERVER_FILE, LIST_FILE = "server.key", "allowed"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HEAD = "# A key of gt. Whoever reads this file can act as its owner: keep it private, in a private folder.\n"
_LIST_HEAD = "# Who may use this gt server: role, public key, name. `gt keygen` adds lines, without its line a key is refused.\n"


def fingerprint(public: str) -> str:
    """Give a short name of a public key, for people and logs."""
    return "gt:" + hashlib.sha256(public.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Keys:
    """A key file's content. ``server``: the public key of the server that it is for; all keys in Z85."""

    role: str
    name: str
    public: str
    server: str
    path: Path
    secret: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.path} ({self.role} {self.name}, {fingerprint(self.public)})"

    def serve(self, socket: zmq.Socket[bytes]) -> None:
        """Have a socket, before it binds, let in only whom the context's gate knows."""
        socket.curve_server = True
        socket.curve_secretkey = self.secret.encode()
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)

    def join(self, socket: zmq.Socket[bytes], server: str = "") -> None:
        """Have a socket, before it connects, prove who it is, to nobody but the owner of key ``server``."""
        socket.curve_serverkey = (server or self.server).encode()
        socket.curve_publickey = self.public.encode()
        socket.curve_secretkey = self.secret.encode()


def read_keys(path: str | os.PathLike[str], *roles: str) -> Keys:
    """Read a key file of one of ``roles``. Errors: KeyFileError saying what is wrong with which file, and what to do."""
    where = Path(path).expanduser()
    try:
        entries: dict[str, Any] = tomllib.loads(read_private(where, MAX_FILE).decode())
    except NotPrivate as e:
        raise KeyFileError(f"key file {e}") from None
    except OSError as e:
        raise KeyFileError(f"check key file {where}: {e.strerror or e}; `gt keygen` makes key files") from None
    except ValueError:  # its text may hold a secret: nothing of it is quoted
        raise KeyFileError(f"check key file {where}: it is not one that `gt keygen` made") from None
    wanted = {"role", "name", "public", "secret", "server"}
    if set(entries) != wanted or not all(isinstance(v, str) for v in entries.values()):
        raise KeyFileError(f"check key file {where}: expected entries {', '.join(sorted(wanted))}")
    if not all(_is_key(entries[k]) for k in ("public", "secret", "server")) or public_of(entries["secret"]) != entries["public"]:
        raise KeyFileError(f"check key file {where}: its keys are damaged; make it anew with `gt keygen`")
    if entries["role"] not in roles:
        raise KeyFileError(f"check key file {where}: it is a {entries['role']}'s, expected one of a {' or '.join(roles)}")
    return Keys(path=where, **entries)


def chosen_keys(path: str | os.PathLike[str] | None, *roles: str) -> Keys | None:
    """Read the key file at ``path``, else the one that GT_KEY_FILE names; None if neither does. Errors: KeyFileError."""
    named = path or env.KEY_FILE.get()
    return read_keys(named, *roles) if named else None


def public_of(secret: str) -> str:
    return zmq.curve_public(secret.encode()).decode()


def _is_key(text: str) -> bool:
    try:
        return len(text) == 40 and len(z85.decode(text.encode())) == 32
    except (ValueError, KeyError, OverflowError):
        return False


# -- making and revoking


def make_keys(folder: Path, clients: Sequence[str], workers: Sequence[str]) -> list[Path]:
    """Write key files for these names, and a server's where there is none; put them on the list. Gives the new files.

    Errors: KeyFileError for a name that is none or is taken, and where the folder is not this user's alone; OSError where there is no room:
    then no name is taken.
    """
    try:
        private_folder(folder)
    except OSError as e:
        raise KeyFileError(str(e)) from None
    names = [*clients, *workers]
    taken = {name for _, _, name in _lines(folder / LIST_FILE)}
    for name in names:
        if not _NAME.fullmatch(name) or name == "server":
            raise KeyFileError(f"expected a name of letters, digits and .-_@, up to 64, got {name[:80]!r}")
        if name in taken or names.count(name) > 1 or (folder / f"{name}.key").exists():
            raise KeyFileError(f"there is a key of the name {name} already: choose another, or `gt keygen --revoke {name}` first")
    path = folder / SERVER_FILE
    made = []
    if not path.exists():
        public, secret = _new_pair()
        _write_keys(Keys("server", "server", public, public, path, secret))
        made.append(path)
    server = read_keys(path, "server").public
    lines = _lines(folder / LIST_FILE)
    named = []
    try:
        for role, chosen in (("client", clients), ("worker", workers)):
            for name in chosen:
                public, secret = _new_pair()
                keys = Keys(role, name, public, server, folder / f"{name}.key", secret)
                _write_keys(keys)
                lines.append((role, public, name))
                named.append(keys.path)
        _write_list(folder / LIST_FILE, lines)
    except OSError:
        for path in named:
            path.unlink()
        raise
    return made + named


def revoke_key(folder: Path, name: str) -> str:
    """Take a name off the list and remove its file; give its fingerprint. Errors: KeyFileError if it is not there."""
    lines = _lines(folder / LIST_FILE)
    found = next((line for line in lines if line[2] == name), None)
    if found is None:
        known = ", ".join(n for _, _, n in lines) or "nobody"
        raise KeyFileError(f"{folder / LIST_FILE} has no {name}: it names {known}")
    _write_list(folder / LIST_FILE, [line for line in lines if line is not found])
    (folder / f"{name}.key").unlink(missing_ok=True)
    return fingerprint(found[1])


def _new_pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _write_keys(keys: Keys) -> None:
    entries = {"role": keys.role, "name": keys.name, "public": keys.public, "secret": keys.secret, "server": keys.server}
    write_private(keys.path, (_HEAD + "".join(f'{k} = "{v}"\n' for k, v in entries.items())).encode())


def _write_list(path: Path, lines: Sequence[tuple[str, str, str]]) -> None:
    write_private(path, (_LIST_HEAD + "".join(f"{' '.join(line)}\n" for line in lines)).encode(), replace=True)


def _lines(path: Path) -> list[tuple[str, str, str]]:
    """Give (role, public key, name) of each line. Errors: KeyFileError with the line's number; no file is no lines."""
    try:
        text = read_private(path, MAX_FILE).decode()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as e:
        raise KeyFileError(f"the list of allowed keys cannot be read: {e}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[0] not in ROLES or not _is_key(words[1]):
            raise KeyFileError(f"{path}:{number}: expected a role ({' or '.join(ROLES)}), a public key and a name")
        found.append((words[0], words[1], words[2]))
    return found


# -- on the server


class Allowed:
    """A server's list of allowed keys, read again when the file changes. ``roles``: by public key.

    A list that cannot be read lets nobody in; ``fault`` says why.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.roles: dict[str, str] = {}
        self.fault = ""
        self._seen: object = None
        self.refresh()

    def refresh(self) -> bool:
        """Read the list if it has changed; tell whether it had."""
        try:
            status = self.path.stat()
            seen: object = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode, status.st_uid)
        except OSError as e:
            seen = e.errno
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self.roles, self.fault = {public: role for role, public, _ in _lines(self.path)}, ""
        except KeyFileError as e:
            self.roles, self.fault = {}, str(e)
        return True

    def role_of(self, user: str) -> str | None:
        """Give what a key may be, None if nothing."""
        return self.roles.get(user)

    def of(self, role: str) -> tuple[str, ...]:
        """Give the public keys with a role."""
        return tuple(public for public, r in self.roles.items() if r == role)


class Guard:
    """Whose key each peer came with. ``role_of``: what a key may be; None: nothing any more. Pure."""

    def __init__(self, role_of: Callable[[str], str | None]) -> None:
        self.role_of = role_of
        self.users: dict[bytes, str] = {}

    def refusal(self, peer: bytes, user: str, message: wire.Message, first: bytes | None) -> str:
        """Give why a message is not served, or nothing. ``first``: the peer that said hello, for an Attach with its token."""
        role = self.role_of(user)
        if role is None:
            return f"key {fingerprint(user)} is not on this server's list of allowed keys (any more)"
        if self.users.get(peer, user) != user:
            return "this peer came with another key before"
        wanted = {wire.ClientHello: "client", wire.WorkerHello: "worker", wire.NodeHello: "worker"}.get(type(message))
        if wanted is not None and role != wanted:
            return (
                f"key {fingerprint(user)} is a {role}'s: check key file, a {wanted} needs one made with `gt keygen --{wanted} NAME`"
            )
        if isinstance(message, wire.WorkerHello) and message.key != user:
            return "the key of a worker's data sockets must be its own"
        if isinstance(message, wire.Attach) and (first is None or self.users.get(first) != user):
            return "the token is not known here, or belongs to another key"
        if isinstance(message, wire.ClientHello | wire.WorkerHello | wire.NodeHello | wire.Attach):
            self.users[peer] = user
        return ""

    def forget(self, known: Callable[[bytes], bool]) -> None:
        """Drop peers that are gone."""
        for peer in [p for p in self.users if not known(p)]:
            del self.users[peer]


__all__ = [
    "LIST_FILE", "SERVER_FILE", "Allowed", "Guard", "Keys", "chosen_keys", "fingerprint", "make_keys", "read_keys", "revoke_key",
]  # fmt: skip
