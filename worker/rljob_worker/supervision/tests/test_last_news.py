"""What happens in the very moment in which an attempt ends."""

from rljob_worker.cli.views.plain import PlainView
from rljob_worker.local.pods.pods import GangEnd
from rljob_worker.local.services import Services, ServicesPlace
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.supervision.supervisor import Launch, Supervisor
from rljob_worker.tests.documents import plan_of

AT = "2026-01-01 00:00:00,000 INFO rljob.start: "


class LastBreath:
    """A gang that starts, steps and ends between two looks at it."""

    serving_seconds = 0.5

    def __init__(self, directory):
        self._directory = directory

    def start(self):
        self._directory.logs(1).mkdir(parents=True)

    def news(self):
        return []

    def poll(self):
        (self._directory.logs(1) / "worker-train-0-0.log").write_text(f"{AT}data ...\n{AT}data: 12 rows, in 0.3 s\n")
        self._directory.metrics.write_text('{"step": 1}\n')
        return GangEnd(0)

    def hear_requests(self):
        return 0

    def stop(self):
        """Nobody asks for it."""

    end = stop

    def metrics_url(self):
        return ""


class Gangs:
    def __init__(self, directory, plan):
        self._directory = directory
        folders = directory.plan, directory.path, directory.path, directory.path
        self.services = Services(ServicesPlace(plan, *folders, mark="", lifeline=-1, here=(), token=""), ())

    def hear_requests(self):
        return 0

    def gang(self, attempt, resume):
        return LastBreath(self._directory)


def test_it_is_told_in_the_order_in_which_it_happened(tmp_path, capsys):
    directory = RunDirectory(tmp_path / "tiny")
    directory.prepare()
    view = PlainView(directory, 10, ())
    plan = plan_of("tiny", groups=[("train", 1, 1)])
    launch = Launch(directory, plan, "never")
    assert Supervisor(launch, view, Gangs(directory, plan)).run().phase == "Succeeded"
    view.close()
    assert capsys.readouterr().out.splitlines() == [
        "tiny: starting, attempt 1",
        "  data buffers: in 0.5 s",
        "  data: 12 rows, in 0.3 s",
        "tiny: running, attempt 1",
        "step 1/10",
        "tiny: succeeded, attempt 1",
    ]
