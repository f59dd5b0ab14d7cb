"""A pod of the classic way, as light as can be: `classic_pod.py ADDRESS PORT INDEX LOAD STEPS`, in its namespace.

Sends its rows as they lie in memory, behind one line that says how long each is; receives its share the same way. Says
on standard output when it is connected, and when a step is over.
"""

from __future__ import annotations

import json
import socket
import sys
import time

CONNECT_SECONDS = 60.0


def main() -> None:
    address, port, index, told, lengths, steps = sys.argv[1:]
    load, sizes = json.loads(told), json.loads(lengths)
    body = bytes(load["token_bytes"] * sum(sizes))
    room = bytearray(2 * len(body))
    with socket.create_connection((address, int(port)), CONNECT_SECONDS) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = connection.makefile("rb")
        connection.sendall(f"{index}\n".encode())
        print(0, flush=True)
        for step in range(int(steps)):
            time.sleep(load["generate"])
            connection.sendall(json.dumps(sizes).encode() + b"\n")
            connection.sendall(body)
            got = load["token_bytes"] * sum(json.loads(reader.readline()))
            if got > len(room):
                room = bytearray(got)
            assert reader.readinto(memoryview(room)[:got]) == got
            time.sleep(load["train"])
            print(step + 1, flush=True)


if __name__ == "__main__":
    main()
