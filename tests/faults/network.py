"""A machine each for the daemons of a test, as far as the network goes: a network namespace with one cable, and a switch
between them that can be told to fail. Needs root and /dev/net/tun.

    namespaces.enter(NETWORK, *network.NEEDS)  # Once, at the start of the program: its own network, in which nobody else is.
    with Net("c", "a", "b") as net:       # And "test", which is where the calling program is.
        subprocess.run([*net.inside("a"), "ping", net.address("b")])
        net.cut("a", "b")                 # What a says to b is lost. Nobody is told.
"""
import contextlib
import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import threading
import time

HERE = "test"
TUNSETIFF, TUNSETCARRIER, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x400454E2, 0x0001, 0x1000
TCP = 6
# In a namespace that is new.
NEEDS = (["sh", "-c", ": <>/dev/net/tun"], ["ip", "link", "set", "lo", "up"], ["nsenter", "--version"])


def namespace(pid):
    return os.readlink(f"/proc/{pid}/ns/net")


class Machine:
    """A namespace that lives as long as its keeper, and the device in it whose other end is our file."""

    def __init__(self, name, number):
        self.name, self.device, self.address = name, f"cable-{name}", f"10.77.0.{number}"
        self.file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.file, TUNSETIFF, struct.pack("16sH22x", self.device.encode(), IFF_TUN | IFF_NO_PI))
        self.keeper = None
        if name != HERE:
            self.keeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
            while namespace(self.keeper.pid) == namespace(os.getpid()):
                time.sleep(0.001)
            subprocess.run(["ip", "link", "set", self.device, "netns", str(self.keeper.pid)], check=True)
        self.run(f"ip link set lo up; ip addr add {self.address}/24 dev {self.device}; ip link set {self.device} up")

    def inside(self):
        return ["nsenter", f"--net=/proc/{self.keeper.pid}/ns/net"] if self.keeper else []

    def run(self, script):
        subprocess.run([*self.inside(), "sh", "-ec", script], check=True)

    def end(self):
        if self.keeper:
            self.keeper.kill()
            self.keeper.wait()
        file, self.file = self.file, -1
        os.close(file)


class Net:
    def __init__(self, *names):
        self.lock = threading.Lock()  # Guards all below; the switch takes it for a packet.
        self.machines, self.by_address, self.selector = {}, {}, selectors.DefaultSelector()
        self.numbers = {name: number for number, name in enumerate((HERE, *names), start=1)}
        self.cuts, self.dead, self.seen = set(), set(), set()
        self.delay, self.jitter, self.loss, self.draw = 0.0, 0.0, 0.0, random.Random(7)
        self.late, self.count = [], 0  # (when, number, to, packet)
        self.wake, self.waker = os.pipe()
        self.selector.register(self.wake, selectors.EVENT_READ, None)
        self.over = False
        for name in self.numbers:
            self.connect(name)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over = True
        os.write(self.waker, b"x")
        self.thread.join()
        for machine in self.machines.values():
            machine.end()
        self.selector.close()
        os.close(self.wake)
        os.close(self.waker)

    def connect(self, name):
        """A new machine of this name, which knows nothing of one that had it before."""
        machine = Machine(name, self.numbers[name])
        with self.lock:
            self.machines[name] = machine
            self.by_address[bytes(map(int, machine.address.split(".")))] = machine
        self.selector.register(machine.file, selectors.EVENT_READ, machine)

    def vanish(self, name):
        """The power goes off: no word of farewell. The caller has killed what ran there, behind isolate()."""
        machine = self.machines.pop(name)
        self.selector.unregister(machine.file)
        with self.lock:
            self.seen = {flow for flow in self.seen if name not in (flow[0][0], flow[1][0])}
        machine.end()

    def address(self, name):
        return self.machines[name].address

    def inside(self, name):
        return self.machines[name].inside()

    # What fails.

    def cut(self, sender, receiver):
        with self.lock:
            self.cuts.add((sender, receiver))

    def part(self, *names):
        """Between these names nothing gets through."""
        for one in names:
            for other in names:
                self.cut(one, other)

    def isolate(self, name):
        for other in self.numbers:
            self.part(name, other)

    def heal(self):
        with self.lock:
            self.cuts.clear()
            self.delay = self.jitter = self.loss = 0.0

    def forget(self, name):
        """As a firewall before this machine that was started again: what belongs to a connection that it has not seen
        begin, it drops, and tells nobody."""
        with self.lock:
            self.dead |= {flow for flow in self.seen if name in (flow[0][0], flow[1][0])}

    def slow_down(self, delay, jitter, loss):
        """Seconds that every packet takes, up to so many more, and the share that is lost."""
        with self.lock:
            self.delay, self.jitter, self.loss = delay, jitter, loss

    def unplug(self, name):
        """The cable: its machine sees that, too."""
        fcntl.ioctl(self.machines[name].file, TUNSETCARRIER, struct.pack("i", 0))

    def plug(self, name):
        fcntl.ioctl(self.machines[name].file, TUNSETCARRIER, struct.pack("i", 1))

    def interface(self, name, state):
        """As an operator's `ip link set down`: routes and neighbours are gone with it."""
        self.machines[name].run(f"ip link set {self.machines[name].device} {state}")

    # The switch.

    def run(self):
        while not self.over:
            pause = max(0.0, self.late[0][0] - time.monotonic()) if self.late else None
            for key, _ in self.selector.select(pause):
                if key.data is not None:
                    self.read(key.data)
            while self.late and self.late[0][0] <= time.monotonic():
                self.hand_on(*heapq.heappop(self.late)[2:])

    def read(self, machine):
        for _ in range(64):  # Then others get a turn.
            try:
                packet = os.read(machine.file, 65536)
            except OSError:  # Nothing more, or the machine has gone.
                return
            receiver = self.by_address.get(packet[16:20])
            if packet[0] >> 4 != 4 or receiver is None:
                continue
            with self.lock:
                passes, when = self.judge(machine, receiver, packet)
            if not passes:
                continue
            if when == 0:
                self.hand_on(receiver, packet)
            else:
                self.count += 1
                heapq.heappush(self.late, (time.monotonic() + when, self.count, receiver, packet))

    def judge(self, machine, receiver, packet):
        """Whether it gets through, and how late."""
        if packet[9] == TCP:
            header = (packet[0] & 15) * 4
            ports = struct.unpack_from("!HH", packet, header)
            flow = tuple(sorted([(machine.name, ports[0]), (receiver.name, ports[1])]))
            if flow in self.dead:
                return False, 0
            self.seen.add(flow)
        if (machine.name, receiver.name) in self.cuts or (self.loss and self.draw.random() < self.loss):
            return False, 0
        return True, self.delay + self.jitter * self.draw.random() if self.delay else 0

    @staticmethod
    def hand_on(receiver, packet):
        with contextlib.suppress(OSError):  # Its cable is out, or it has gone.
            os.write(receiver.file, packet)
