"""The check of histories finds lies. Needs no daemon."""
import unittest

from history import Call, check_history
from rig import jobs_pb2

NAME = "projects/default/jobs/x"


def view(state, epoch=0, name=NAME):
    return jobs_pb2.Job(name=name, state=jobs_pb2.Job.State.Value(state), epoch=epoch)


def events(*states):
    made, last = [], "STATE_UNSPECIFIED"
    for number, (state, epoch) in enumerate(states, 1):
        event = jobs_pb2.JobEvent(sequence=number)
        setattr(event.state_change, "from", jobs_pb2.Job.State.Value(last))
        event.state_change.to, event.state_change.epoch = jobs_pb2.Job.State.Value(state), epoch
        made.append(event)
        last = state
    return {NAME: made}


WHOLE = (("QUEUED", 0), ("STARTING", 1), ("RUNNING", 1), ("SUCCEEDED", 1))


class HistoryTest(unittest.TestCase):
    def check(self, history, *states, known=None):
        check_history(history, known if known is not None else events(*(states or WHOLE)), jobs_pb2)

    def refuse(self, what, history, *states, known=None):
        with self.assertRaisesRegex(AssertionError, what):
            self.check(history, *states, known=known)

    def submit(self, at=0, name=NAME):
        return Call("submit", "r", at, at + 1, view("QUEUED", name=name), None)

    def get(self, start, end, state, epoch):
        return Call("get", NAME, start, end, view(state, epoch), None)

    def test_truth(self):
        self.check([self.submit(), self.submit(5), self.get(2, 3, "STARTING", 1), self.get(4, 5, "SUCCEEDED", 1)])
        self.check([self.submit(), self.get(2, 5, "RUNNING", 1), self.get(3, 4, "STARTING", 1)])  # They overlap.
        self.check([Call("submit", "q", 0, 1, None, "UNAVAILABLE"), self.submit()])

    def test_a_job_that_is_lost(self):
        self.refuse("is lost", [self.submit()], known={})
        self.refuse("not found", [self.submit(), Call("get", NAME, 2, 3, None, "NOT_FOUND")])
        self.refuse("a list without", [self.submit(), Call("list", "", 2, 3, jobs_pb2.ListJobsResponse(), None)])

    def test_two_jobs_of_one_request(self):
        self.refuse("made", [self.submit(), self.submit(2, name="projects/default/jobs/y")])

    def test_a_read_that_goes_back(self):
        self.refuse("a get saw", [self.submit(), self.get(2, 3, "RUNNING", 1), self.get(4, 5, "STARTING", 1)])
        self.refuse("a get saw", [self.submit(), self.get(2, 3, "CANCELLED", 0)])

    def test_an_illegal_path(self):
        self.refuse("QUEUED -> RUNNING", [], ("QUEUED", 0), ("RUNNING", 1))
        self.refuse("SUCCEEDED -> QUEUED", [], *WHOLE, ("QUEUED", 1))
        known = events(*WHOLE)
        known[NAME][3].sequence = 3
        self.refuse("numbers of events", [], known=known)

    def test_a_cancel_that_did_not_count(self):
        cancelled = Call("cancel", NAME, 2, 3, view("CANCELLING", 1), None)
        self.refuse("cancelled, and then", [self.submit(), cancelled])


if __name__ == "__main__":
    unittest.main()
