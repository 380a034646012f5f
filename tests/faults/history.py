"""What clients saw, against what a service may do. Pure: tests/faults/test_history.py feeds it lies."""
import collections

Call = collections.namedtuple("Call", "kind key start end result code detail", defaults=("",))

# server/jobs/transitions.h
LEGAL = {("STATE_UNSPECIFIED", "QUEUED"), ("QUEUED", "STARTING"), ("QUEUED", "CANCELLED"), ("STARTING", "RUNNING"),
         ("STARTING", "SUCCEEDED"), ("RUNNING", "SUCCEEDED"), ("RESTARTING", "QUEUED"), ("RESTARTING", "CANCELLING"),
         ("RESTARTING", "FAILING"), ("CANCELLING", "CANCELLED"), ("FAILING", "FAILED")} | {
             (old, new) for old in ("STARTING", "RUNNING") for new in ("RESTARTING", "CANCELLING", "FAILING")}
LEGAL |= {("QUEUED", "FAILED")}  # A dependency or a time limit.
TERMINAL = ("SUCCEEDED", "FAILED", "CANCELLED")


def states_of(events, pb2):
    """The states that a job went through, as (state, epoch); checks that they may follow each other."""
    path, last = [], "STATE_UNSPECIFIED"
    numbers = [event.sequence for event in events]
    assert numbers == sorted(set(numbers)), f"numbers of events: {numbers}"
    for event in events:
        if event.WhichOneof("kind") != "state_change":
            continue
        change = event.state_change
        old, new = (pb2.Job.State.Name(state) for state in (getattr(change, "from"), change.to))
        assert old == last, f"from {old}, but it was {last}"
        assert (old, new) in LEGAL, f"{old} -> {new}"
        path.append((new, change.epoch))
        last = new
    assert sum(state in TERMINAL for state, _ in path) <= 1, f"more than one end: {path}"
    return path


def check_reads(name, path, reads, pb2):
    """Every read saw one of the states, and none an older one than another read that was over before it began."""
    seen = []  # (end of the read, position in the path)
    for read in sorted(reads, key=lambda read: read.start):
        bound = max((position for end, position in seen if end < read.start), default=0)
        view = (pb2.Job.State.Name(read.result.state), read.result.epoch)
        later = [at for at in range(bound, len(path)) if path[at] == view]
        assert later, f"{name}: a {read.kind} saw {view} after {path[bound]}; the history is {path}"
        seen.append((read.end, later[0]))


def check_history(history, events, pb2):
    """`events`: name -> all events of each job that there is. Returns (job id, epoch) of those that were given up."""
    paths = {name: states_of(one, pb2) for name, one in events.items()}
    made = collections.defaultdict(set)  # request_id -> names
    known = {}  # name -> when its existence was first acknowledged
    reads = collections.defaultdict(list)
    for call in sorted(history, key=lambda call: call.end):
        if call.result is None:
            continue
        views = call.result.jobs if call.kind == "list" else [call.result]
        for view in views:
            known[view.name] = min(known.get(view.name, call.end), call.end)
            if call.kind in ("get", "list"):  # Answers to a repeated request are as the first one was.
                reads[view.name].append(call._replace(result=view))
        if call.kind == "submit":
            made[call.key].add(call.result.name)
    for request, names in made.items():
        assert len(names) == 1, f"request {request} made {names}"
    for name in known:
        assert name in events, f"{name} was acknowledged, and is lost"
    for call in history:
        if call.kind in ("get", "cancel") and call.code == "NOT_FOUND":
            assert known.get(call.key, call.end) >= call.start, f"{call.key} was not found by a {call.kind}"
        if call.kind == "list" and call.result is not None:
            listed = {job.name for job in call.result.jobs}
            missing = [name for name, when in known.items() if when < call.start and name not in listed]
            assert not missing, f"a list without {missing}"
        if call.kind == "cancel" and call.result is not None:
            ends = [state for state, _ in paths[call.key] if state in TERMINAL]
            assert ends in ([], ["CANCELLED"]), f"{call.key}: cancelled, and then {ends}"
    for name, of_job in reads.items():
        check_reads(name, paths[name], of_job, pb2)
    given_up = set()
    for name, one in events.items():
        for event in one:
            if event.WhichOneof("kind") == "state_change" and "NODE_LOST" in event.state_change.reason:
                given_up.add((name.rpartition("/")[2], event.state_change.epoch))
    return given_up
