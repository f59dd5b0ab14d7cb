"""Accounts of trackers that a machine lacks."""

import pytest

from rljob_worker.rehearsal.machine.tracker_logins import tracker_findings, unreachable_trackers


@pytest.mark.parametrize(
    "variables",
    [
        {"WANDB_API_KEY": "k"},
        {"WANDB_MODE": "offline"},
        {"WANDB_IDENTITY_TOKEN_FILE": "token"},
    ],
)
def test_whoever_has_an_account_or_needs_none_hears_nothing(tmp_path, variables):
    assert list(unreachable_trackers(["WandB"], {"HOME": str(tmp_path)} | variables)) == []


def test_an_account_of_wandb_is_looked_for_where_its_login_leaves_it(tmp_path):
    home = {"HOME": str(tmp_path)}
    (said,) = unreachable_trackers(["TensorBoard", "WandB"], home)
    assert said.startswith("WandB has no account here") and "names api.wandb.ai; `wandb login`" in said
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password k\n")
    assert list(unreachable_trackers(["WandB"], home)) == []
    (said,) = unreachable_trackers(["WandB"], home | {"WANDB_BASE_URL": "https://wandb.example:8080"})
    assert "names wandb.example:8080;" in said
    (tmp_path / "other").write_text("machine wandb.example:8080 login user password k")
    elsewhere = {"WANDB_BASE_URL": "https://wandb.example:8080", "NETRC": str(tmp_path / "other")}
    assert list(unreachable_trackers(["WandB"], home | elsewhere)) == []


def test_a_netrc_file_that_is_none_names_nobody(tmp_path):
    (tmp_path / ".netrc").write_text("hello")
    assert len(list(unreachable_trackers(["WandB"], {"HOME": str(tmp_path)}))) == 1


def test_a_server_of_mlflow_is_named_by_its_variable():
    (said,) = unreachable_trackers(["MLflow"], {})
    assert said.startswith("MLflow has no server here: MLFLOW_TRACKING_URI is not set")
    assert list(unreachable_trackers(["MLflow"], {"MLFLOW_TRACKING_URI": "http://mlflow"})) == []
    assert list(unreachable_trackers(["TensorBoard"], {})) == []


@pytest.mark.parametrize("uri", ["file:./mlruns", "file:///tmp/mlruns", "mlruns", "/tmp/mlruns"])
def test_folders_of_mlflow_are_refused_by_name(uri):
    (finding,) = tracker_findings(["TensorBoard", "MLflow"], {"MLFLOW_TRACKING_URI": uri})
    assert finding.problem.path == "spec.monitoring.trackers[1]"
    assert f"names a folder, {uri}, which" in finding.problem.message and "`mlflow server`" in finding.problem.fix
    assert list(unreachable_trackers(["MLflow"], {"MLFLOW_TRACKING_URI": uri})) == []


@pytest.mark.parametrize("uri", ["http://mlflow:5000", "databricks", "databricks://profile", ""])
def test_servers_of_mlflow_are_not_refused(uri):
    assert list(tracker_findings(["MLflow"], {"MLFLOW_TRACKING_URI": uri})) == []
