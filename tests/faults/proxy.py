"""A line between a worker and the coordinator that can fail in ways that a process on the same machine does not see."""
import contextlib
import select
import socket
import threading

UP, DOWN = 0, 1  # From the worker to the coordinator, and back.


class Pair:
    """One connection: the worker's end, ours to the coordinator, and what is to be handed on to whom."""

    def __init__(self, near, far):
        self.ends, self.held, self.forgotten = [near, far], [b"", b""], False

    def end(self, which=(UP, DOWN)):
        for at in which:
            with contextlib.suppress(OSError):
                self.ends[at].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.ends[at].close()

    def open(self, at):
        return self.ends[at].fileno() >= 0


class Proxy:
    """set("pass"): as if it were not there. "hold": nothing gets through and nobody is told, as behind a cable that is out;
    what was said arrives later. "hold_up", "hold_down": so in one direction only."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.mode, self.pairs, self.lock, self.over = "pass", [], threading.Lock(), False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def set(self, mode):
        with self.lock:
            self.mode = mode

    def forget(self):
        """What is said on the connections of now is taken and lost, and the worker is not told of their end. New ones are
        as the mode says."""
        with self.lock:
            for pair in self.pairs:
                pair.forgotten = True

    def reset(self):
        """Ends every connection for both sides."""
        with self.lock:
            for pair in self.pairs:
                pair.end()

    def close(self):
        self.over = True
        self.thread.join()
        self.listener.close()
        self.reset()

    def run(self):
        while not self.over:
            with self.lock:
                ends = {pair.ends[at]: (pair, at) for pair in self.pairs for at in (UP, DOWN) if pair.open(at)}
            ready, _, _ = select.select([self.listener, *ends], [], [], 0.02)
            with self.lock:
                for one in ready:
                    if one is self.listener:
                        self.accept()
                    elif one.fileno() >= 0:
                        self.take(*ends[one])
                for pair in self.pairs:
                    self.hand_on(pair)
                self.pairs = [pair for pair in self.pairs if pair.open(UP)]

    def accept(self):
        near = self.listener.accept()[0]
        try:
            self.pairs.append(Pair(near, socket.create_connection(self.target, timeout=1)))
        except OSError:
            near.close()

    @staticmethod
    def take(pair, at):
        try:
            data = pair.ends[at].recv(65536)
        except OSError:
            data = b""
        if data:
            pair.held[at] += b"" if pair.forgotten else data
        else:
            pair.end((DOWN,) if pair.forgotten and at == DOWN else (UP, DOWN))

    def hand_on(self, pair):
        for at, held_back in ((UP, "hold_up"), (DOWN, "hold_down")):
            if not pair.held[at] or self.mode in ("hold", held_back):
                continue
            with contextlib.suppress(OSError):
                if pair.open(1 - at):
                    pair.ends[1 - at].sendall(pair.held[at])
            pair.held[at] = b""
