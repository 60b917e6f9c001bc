"""Airflow on one machine: SQLite, LocalExecutor, loopback only; one process per component, a log for each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from local.airflow_api import AirflowApi
from local.environments import only_one
from local.ports import HOST
from local.process import Process, plain_environment
from local.steps import run_step

START_S = 180.0
# --skip-serve-logs: the API server reads the logs from the same disk, so no log server needs to listen
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


def airflow_settings(*, checkout: Path, home: Path, log_folder: Path, port: int) -> dict[str, str]:
    """Airflow's settings as variables: everybody is admin, nothing calls home, edited Dags show soon."""
    address = f"http://{HOST}:{port}"
    return {
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": str(checkout),
        "AIRFLOW__CORE__DAGS_FOLDER": str(checkout / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(checkout / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(log_folder / "airflow"),
        "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(
            log_folder / "airflow" / "dag_processor"
        ),
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "SCARF_ANALYTICS": "false",
        "DO_NOT_TRACK": "1",
    }


class AirflowServer:
    """api-server, scheduler, Dag processor and triggerer. `start` returns when all four are healthy."""

    def __init__(
        self,
        *,
        python: Path,
        checkout: Path,
        home: Path,
        run_folder: Path,
        log_folder: Path,
        port: int,
        variables: Mapping[str, str],
    ) -> None:
        self.port = port
        self.home = home
        self.task_logs = log_folder / "airflow"
        self.api = AirflowApi(self.address)
        self.variables = {
            **airflow_settings(checkout=checkout, home=home, log_folder=log_folder, port=port),
            **variables,
        }
        self._airflow = (str(python), "-m", "airflow")
        self._run_folder, self._log_folder, self._checkout = run_folder, log_folder, checkout
        self._bin_folder = python.parent
        self._secrets_file = home / "secrets.env"

    @property
    def address(self) -> str:
        """The UI and the API."""
        return f"http://{HOST}:{self.port}"

    def processes(self) -> list[Process]:
        """The four components, with the secrets that they share."""
        variables = {**self.variables, **self._secrets()}
        return [
            Process(
                f"airflow-{name}",
                [*self._airflow, *command],
                variables=variables,
                run_folder=self._run_folder,
                log_folder=self._log_folder,
                cwd=self._checkout,
                bin_folder=self._bin_folder,
            )
            for name, command in COMPONENTS.items()
        ]

    def start(self, say: Callable[[str], None] = print) -> float:
        """Seconds until the components are healthy; LocalError if one dies."""
        self._make_secrets()
        processes = self.processes()
        if not all(process.is_as_asked() for process in processes):
            self._migrate()
        for process in processes:
            process.start()

        def ready() -> bool:
            for process in processes:
                process.check_alive()
            return self.is_ready()

        return processes[0].wait_until(ready, timeout_s=START_S, say=say, title="airflow")

    def is_ready(self) -> bool:
        """Whether all components report themselves healthy."""
        health = self.api.health()
        parts = ("metadatabase", "scheduler", "dag_processor", "triggerer")
        return all(health.get(part) == "healthy" for part in parts)

    def stop(self) -> bool:
        """Ends all components and the tasks they run; True if anything ran."""
        # the API server last: the scheduler's tasks report to it
        return sum(process.stop() for process in reversed(self.processes())) > 0

    def _migrate(self) -> None:
        log = self._log_folder / "airflow-db.log"
        environment = plain_environment({**self.variables, **self._secrets()}, self._bin_folder)
        with only_one(self.home / ".migrate.lock", "airflow: waiting for another migration"):
            run_step([*self._airflow, "db", "migrate"], log, env=environment, cwd=self._checkout)

    def _secrets(self) -> dict[str, str]:
        """What `_make_secrets` has made; never printed."""
        try:
            return dict(line.split("=", 1) for line in self._secrets_file.read_text().splitlines())
        except FileNotFoundError:
            return {}

    def _make_secrets(self) -> None:
        """Once per AIRFLOW_HOME, readable by its owner only."""
        file = self._secrets_file
        if not file.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            aside = file.with_suffix(f".{os.getpid()}")
            aside.touch(mode=0o600)
            aside.write_text("".join(f"{name}={secrets.token_urlsafe(32)}\n" for name in _SECRETS))
            aside.replace(file)


_SECRETS = ("AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__API__SECRET_KEY")
