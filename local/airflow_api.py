"""The few calls of Airflow's REST API that the demo makes, with the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from local.errors import LocalError

Json = dict[str, Any]


class AirflowApi:
    """A client of `http://host:port` where everybody is admin (the simple auth manager's setting)."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._token = ""

    def health(self) -> dict[str, str | None]:
        """component → healthy, unhealthy or None (not seen yet); empty while nothing answers."""
        try:
            answer = self._call("GET", "/api/v2/monitor/health", timeout_s=5)
        except LocalError:
            return {}
        return {name: part.get("status") for name, part in answer.items() if isinstance(part, dict)}

    def import_errors(self) -> list[str]:
        """'file: last line of the stack trace', one for each broken Dag file."""
        found = self._get("/api/v2/importErrors", limit=20)["import_errors"]
        return [f"{e['filename']}: {e['stack_trace'].strip().splitlines()[-1]}" for e in found]

    def has_dag(self, dag_id: str) -> bool:
        """Whether the Dag has been parsed."""
        return any(dag["dag_id"] == dag_id for dag in self._get("/api/v2/dags", limit=100)["dags"])

    def unpause(self, dag_id: str) -> None:
        """Lets the Dag's runs be scheduled."""
        self._authorised("PATCH", f"/api/v2/dags/{_quoted(dag_id)}", {"is_paused": False})

    def trigger(self, dag_id: str, conf: Json, *, partition_key: str | None = None) -> str:
        """Starts a run; its run id."""
        body: Json = {"logical_date": None, "conf": conf}
        if partition_key:
            body["partition_key"] = partition_key
        return str(self._authorised("POST", f"/api/v2/dags/{_quoted(dag_id)}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """queued, running, success or failed."""
        return str(self._get(f"/api/v2/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}")["state"])

    def task_ids(self, dag_id: str) -> list[str]:
        """The Dag's tasks in the order in which they can run."""
        tasks = self._get(f"/api/v2/dags/{_quoted(dag_id)}/tasks")["tasks"]
        after = {task["task_id"]: set(task["downstream_task_ids"]) for task in tasks}
        ordered: list[str] = []
        while after:
            first = [t for t in after if not any(t in later for other, later in after.items() if other != t)]
            ordered += first or list(after)
            after = {t: later for t, later in after.items() if t not in ordered}
        return ordered

    def tasks(self, dag_id: str, run_id: str) -> list[Json]:
        """Task instances: task_id, state, start_date, duration, try_number."""
        path = f"/api/v2/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}/taskInstances"
        return list(self._get(path, limit=100)["task_instances"])

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str) -> Any:
        """A task's value; None if it has none."""
        path = (
            f"/api/v2/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}"
            f"/taskInstances/{_quoted(task_id)}/xcomEntries/{_quoted(key)}"
        )
        try:
            value = self._get(path)["value"]
        except LocalError:
            return None
        return json.loads(value) if isinstance(value, str) and value[:1] in "{[" else value

    def _get(self, path: str, **query: Any) -> Json:
        return self._authorised("GET", f"{path}?{urllib.parse.urlencode(query)}" if query else path)

    def _authorised(self, method: str, path: str, body: Json | None = None) -> Json:
        if not self._token:
            self._token = str(self._call("GET", "/auth/token")["access_token"])
        return self._call(method, path, body)

    def _call(self, method: str, path: str, body: Json | None = None, *, timeout_s: float = 30) -> Json:
        request = urllib.request.Request(self.address + path, method=method)
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, data, timeout=timeout_s) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            raise LocalError(f"Airflow answers {error.code} to {method} {path}: {said}") from None
        except (OSError, ValueError) as error:
            raise LocalError(f"Airflow doesn't answer {method} {path} at {self.address}: {error}.") from None


def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")
