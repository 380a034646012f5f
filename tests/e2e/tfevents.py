"""Reads TensorBoard's event files by the description of their format alone; nothing of the product or of TensorFlow.

A file is a row of records: length (u64), masked CRC-32C of those 8 bytes (u32), data, masked CRC-32C of the data (u32),
all little-endian. Masked: rotated right by 15 bits, plus 0xa282ead8. The data is a protobuf message Event: 1 wall_time
(double), 2 step (int64), 3 file_version (string), 5 summary {repeated 1 value {1 tag, 2 simple_value (float)}},
7 session_log {1 status: 1 is START}.
"""
import pathlib
import struct


def make_table():
    table = []
    for index in range(256):
        for _ in range(8):
            index = index >> 1 ^ (0x82F63B78 if index & 1 else 0)
        table.append(index)
    return table


TABLE = make_table()


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        if len(data) - at < 12:
            raise ValueError(f"byte {at}: half a record's head")
        length, crc = struct.unpack_from("<QI", data, at)
        if crc != masked_crc(data[at:at + 8]):
            raise ValueError(f"byte {at}: the length's checksum is wrong")
        body = data[at + 12:at + 12 + length]
        if len(data) < at + 16 + length:
            raise ValueError(f"byte {at}: the record ends early")
        if struct.unpack_from("<I", data, at + 12 + length)[0] != masked_crc(body):
            raise ValueError(f"byte {at}: the data's checksum is wrong")
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def fields(data):
    """(number, value) of a protobuf message; the value is an int, or the bytes of a fixed or length-delimited field."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}.get(kind) or varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def event(data):
    found = dict(step=0, scalars={}, version=None, start=False)
    for number, value in fields(data):
        if number == 1:
            found["time"] = struct.unpack("<d", value)[0]
        elif number == 2:
            found["step"] = value
        elif number == 3:
            found["version"] = value.decode()
        elif number == 5:
            for _, one in fields(value):
                parts = dict(fields(one))
                found["scalars"][parts[1].decode()] = struct.unpack("<f", parts[2])[0]
        elif number == 7:
            found["start"] = dict(fields(value)).get(1) == 1
    return found


def read(folder):
    """tag -> {step: value} of all event files of a folder, in the order of their names, as TensorBoard shows them: a
    START takes back what earlier events say of its step and later ones."""
    curves = {}
    for path in sorted(pathlib.Path(folder).glob("events.out.tfevents.*")):
        events = [event(data) for data in records(path.read_bytes())]
        if not events or events[0]["version"] != "brain.Event:2":
            raise ValueError(f"{path}: does not begin with its version")
        for one in events:
            if one["start"]:
                for steps in curves.values():
                    for step in [step for step in steps if step >= one["step"]]:
                        del steps[step]
            for tag, value in one["scalars"].items():
                curves.setdefault(tag, {})[one["step"]] = value
    return curves
