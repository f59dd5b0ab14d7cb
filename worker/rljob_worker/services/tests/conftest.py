"""What several tests of services are given."""

import warnings

import pytest


class Noting:
    """A deployment that notes the options that Ray Serve gets of it."""

    def __init__(self, app):
        self.app = app

    def options(self, **reported):
        self.announced = reported
        return self

    def bind(self, *given):
        self.given = given
        return self.app


@pytest.fixture
def answering(monkeypatch):
    """Stands for the deployment of every shipped application."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own, while it is imported
        from rljob_worker.services import applications
        from rljob_worker.services.tests import served_here

    noting = Noting(served_here.app)
    monkeypatch.setattr(applications, "ANSWERING", noting)
    return noting
