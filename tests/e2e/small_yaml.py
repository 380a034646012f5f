"""Reads the block YAML that telar prints: mappings, sequences, plain and double-quoted scalars, and {} or []."""
import json


def scalar(text):
    if text.startswith('"') or text in ("{}", "[]", "true", "false", "null"):
        return json.loads(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def block(lines, indent):
    """`lines` is a list of (indent, text) that is consumed."""
    sequence, result = lines[0][1].startswith("- ") or lines[0][1] == "-", None
    result = [] if sequence else {}
    while lines and lines[0][0] == indent and (lines[0][1].startswith("- ") == sequence):
        text = lines.pop(0)[1]
        if sequence:
            item = text[2:]
            if is_entry(item):
                lines.insert(0, (indent + 2, item))
                result.append(block(lines, indent + 2))
            else:
                result.append(scalar(item))
            continue
        key, _, value = text.partition(":")
        if value.strip():
            result[key] = scalar(value.strip())
        else:
            if not lines or lines[0][0] < indent:
                raise ValueError(f"{text!r} has no value")
            result[key] = block(lines, lines[0][0])
    return result


def is_entry(text):
    key, colon, rest = text.partition(":")
    return bool(colon) and key.replace("_", "a").isalnum() and (not rest or rest.startswith(" "))


def parse(text):
    lines = [(len(line) - len(line.lstrip(" ")), line.strip()) for line in text.splitlines() if line.strip()]
    result = block(lines, 0)
    if lines:
        raise ValueError(f"cannot read {lines[0][1]!r}")
    return result
