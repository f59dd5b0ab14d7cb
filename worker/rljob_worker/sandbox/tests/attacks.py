"""What hostile user code does. Each returns what it got; a denial is an exception, which fails the call."""

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)


def _checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path):
    return len(Path(path).read_bytes())


def read_by_program(path):
    return len(subprocess.run(["/usr/bin/cat", path], check=True, capture_output=True).stdout)


def list_folder(path):
    return len(os.listdir(path))


def write(path):
    return Path(path).write_text("x")


def truncate(path):
    os.truncate(path, 0)
    return 1


def make_link(path):
    os.link(path, "link")
    return 1


def change_mode(path):
    os.chmod(path, 0o777)
    return 1


def change_time(path):
    os.utime(path)
    return 1


def set_attribute(path):
    os.setxattr(path, "user.x", b"x")
    return 1


def send_signal(pid):
    os.kill(pid, signal.SIGUSR1)
    return 1


def trace(pid):
    return 1 + _checked(libc.ptrace(16, pid, 0, 0))  # PTRACE_ATTACH


def read_memory(pid):
    local = ctypes.create_string_buffer(8)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(local), 8)
    remote = (ctypes.c_size_t * 2)(ctypes.addressof(local), 8)
    result = libc.process_vm_readv(pid, vector, 1, remote, 1, 0)
    return 1 if result < 0 and ctypes.get_errno() == errno.EFAULT else 1 + _checked(result)  # there, or nothing there


def slow_down(pid):
    os.setpriority(os.PRIO_PROCESS, pid, 19)
    return 1


def limit_other(pid):
    import resource

    resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    return 1


def connect(host, port):
    with socket.create_connection((host, port)):
        return 1


def connect_by_fast_open(host, port):
    with socket.socket() as client:
        return client.sendto(b"x", 0x20000000, (host, port))


def open_multipath(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as client:
        client.connect((host, port))
        return 1


def serve(host, port):
    with socket.socket() as server:
        server.listen()
        return 1


def send_datagram(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        return client.sendto(b"x", (host, port))


def connect_unix(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        return 1


def redirect_pair(path):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        return one.sendto(b"x", path)


def leave_session():
    return os.setsid() or 1


def leave_group():
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
        except OSError:
            os._exit(7)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise PermissionError("setpgid")
    return 1


def new_namespace():
    return 1 + _checked(libc.unshare(0x20000))


def new_namespace_by_clone():
    return 1 + _checked(libc.syscall(56 if os.uname().machine == "x86_64" else 220, 0x20000 | 17, 0, 0, 0, 0))


def io_uring():
    return 1 + _checked(libc.syscall(425, 1, ctypes.create_string_buffer(120)))


def hidden_memory():
    return os.memfd_create("x")


def inject_into_terminal():
    import fcntl
    import pty

    _, terminal = pty.openpty()
    fcntl.ioctl(terminal, 0x5412, b"x")
    return 1


def use_privilege():
    subprocess.run([sys.executable, "-c", "import os; os.nice(-5)"], check=True, stderr=subprocess.DEVNULL)
    return 1


def num_descriptors():
    total = 0
    for number in range(4096):
        try:
            os.fstat(number)
        except OSError:
            continue
        total += 1
    return total


def bomb_of_processes():
    while True:
        if os.fork() == 0:
            time.sleep(1000)


def bomb_of_memory(count, size):
    for _ in range(count):
        if os.fork() == 0:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for at in range(0, size, 4096):
                memory[at] = 1
            time.sleep(1000)
    time.sleep(1000)


def shared_memory(count, size):
    """Many processes that use the same pages: not more than one would."""
    memory = bytearray(size)
    for _ in range(count):
        if os.fork() == 0:
            sum(memory[::4096])
            time.sleep(1000)
    started = time.monotonic()
    while time.monotonic() < started + 0.5:
        time.sleep(0.01)
    return len(memory)


def escape(folder):
    """A process without a parent and, if it may, of a session of its own."""
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            os.setsid()
        if os.fork() == 0:
            os.write(1, f"escaped {os.getpid()}\n".encode())
            time.sleep(1000)
        os._exit(0)
    time.sleep(1000)


def fetch(url):
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def work_as_usual():
    """What honest code does."""
    import hashlib
    import json
    import random
    import sqlite3
    import tempfile
    import threading

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").write_text("x")
        os.rename(Path(folder, "a"), Path(folder, "b"))
        sqlite3.connect(Path(folder, "db")).execute("create table t (x)")
    thread = threading.Thread(target=time.monotonic)
    thread.start()
    thread.join()
    printed = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True)
    listed = subprocess.run("ls / > /dev/null 2>&1; echo done", shell=True, capture_output=True, text=True, check=True)
    assert hashlib.sha256(b"").hexdigest() and random.random() >= 0 and json.loads("1") == 1
    return printed.stdout + listed.stdout
