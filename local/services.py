"""`python3.11 -m local.services start|stop|status|env|wipe`: Airflow, vLLM and the loopback GPU host."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping

from local import model
from local.airflow_server import COMPONENTS, AirflowServer
from local.environments import AIRFLOW, GPU, VLLM_CPU, only_one
from local.errors import LocalError, exit_with_sentence
from local.gpu_host import GpuHost
from local.places import MODEL, Places
from local.ports import HOST, settle
from local.process import is_running
from local.vllm_server import VllmServer

PORTS: Mapping[str, int] = {"airflow": 8080, "vllm": 8000}
ANY_PORT: Mapping[str, int] = {"airflow": 0, "vllm": 0}


class Services:
    """The three services of one set of places. Tests make their own set, with other places and any ports."""

    def __init__(self, places: Places, ports: Mapping[str, int] = PORTS) -> None:
        self.places = places
        running = {name for name, file in _RUN_FILES.items() if is_running(places.run, file)}
        self.ports = settle(places.run / "ports.json", ports, in_use=running)
        self.gpu_host = GpuHost(folder=places.gpu_host, cache=places.cache, run_folder=places.run)
        self.vllm = VllmServer(
            python=VLLM_CPU.python(places.cache),
            model=places.models / MODEL,
            port=self.ports["vllm"],
            cache=places.cache,
            run_folder=places.run,
            log_folder=places.logs,
        )

    @property
    def airflow(self) -> AirflowServer:
        """Airflow with the connections as they are now (the GPU host's port is known once it is up)."""
        return AirflowServer(
            python=AIRFLOW.python(self.places.cache),
            checkout=self.places.checkout,
            home=self.places.airflow_home,
            run_folder=self.places.run,
            log_folder=self.places.logs,
            port=self.ports["airflow"],
            variables=self.project_variables(),
        )

    def project_variables(self) -> dict[str, str]:
        """What the project itself reads: its folders and its connections."""
        engine = {"conn_type": "http", "host": HOST, "port": self.ports["vllm"]}
        variables = {
            "EAGLE3_DATA_DIR": str(self.places.data),
            "EAGLE3_MODELS_DIR": str(self.places.models),
            "AIRFLOW_CONN_DEMO_ENGINE": json.dumps(engine),
        }
        if gpu_host := self.gpu_host.connection():
            variables["AIRFLOW_CONN_GPU_HOST"] = json.dumps(gpu_host)
        return variables

    def start(self, say: Callable[[str], None] = print) -> None:
        """Starts what isn't up; returns when all three answer. LocalError names the log of who dies."""
        self.check_installed()
        with only_one(self.places.run / ".start.lock", "waiting for another start of the services"):
            self._start(say)

    def _start(self, say: Callable[[str], None]) -> None:
        self.places.data.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        self.gpu_host.start()
        say(f"gpu host: up in {time.monotonic() - began:.0f} s, {self.places.gpu_host}")
        began_vllm = time.monotonic()
        self.vllm.launch()
        airflow = self.airflow
        airflow.start(say)
        say(f"airflow: up in {time.monotonic() - began_vllm:.0f} s, {airflow.address}")
        self.vllm.wait(say)
        say(f"vllm: up in {time.monotonic() - began_vllm:.0f} s, {self.vllm.address}")

    def stop(self, say: Callable[[str], None] = print) -> None:
        """Ends all three and waits until nothing of them is left."""
        for name, stop in (
            ("airflow", self.airflow.stop),
            ("vllm", self.vllm.stop),
            ("gpu host", self.gpu_host.stop),
        ):
            say(f"{name}: {'stopped' if stop() else 'was not running'}")

    def status(self) -> dict[str, str]:
        """service → 'up, where', 'starting' or 'down'."""
        airflow = self.airflow
        parts = airflow.processes()
        return {
            "airflow": _state(airflow.is_ready(), any(p.pid for p in parts), airflow.address),
            "vllm": _state(self.vllm.is_ready(), self.vllm.process.pid is not None, self.vllm.address),
            "gpu host": _state(self.gpu_host.is_ready(), False, str(self.places.gpu_host)),
        }

    def check_installed(self) -> None:
        """LocalError unless the three services' environments and the model are there."""
        needed = {"airflow": AIRFLOW, "gpu": GPU, "vllm": VLLM_CPU}
        lacking = [name for name, env in needed.items() if not env.is_complete(self.places.cache)]
        lacking += [] if model.is_complete(self.places.cache) else ["model"]
        if lacking:
            raise LocalError(
                f"Not installed in {self.places.cache}: {', '.join(lacking)}. Run `make install`."
            )

    def shell_lines(self) -> str:
        """`export` lines for a POSIX shell: the CLI and `airflow` then see what the services see."""
        lines = [
            f"export {name}={shlex.quote(value)}" for name, value in sorted(self.airflow.variables.items())
        ]
        return "\n".join([*lines, f'export PATH={shlex.quote(self.shell_path())}:"$PATH"'])

    def shell_path(self) -> str:
        """The folder where the `airflow` command is."""
        return str(AIRFLOW.python(self.places.cache).parent)


_RUN_FILES = {"airflow": f"airflow-{next(iter(COMPONENTS))}", "vllm": "vllm"}


def _state(ready: bool, running: bool, where: str) -> str:
    return f"up, {where}" if ready else "starting or unwell" if running else "down"


def wipe(places: Places) -> None:
    """Removes what the demo has written (not the cache); only after a stop."""
    for folder in (places.state, places.gpu_host):
        if folder.exists():
            shutil.rmtree(folder)
            print(f"removed {folder}")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python3.11 -m local.services", description=__doc__)
    parser.add_argument("action", choices=("start", "stop", "status", "env", "wipe"))
    action = parser.parse_args().action
    places = Places.of_demo(os.environ)
    services = Services(places)
    if action == "start":
        services.start()
    elif action == "stop":
        services.stop()
    elif action == "status":
        print("\n".join(f"{name}: {state}" for name, state in services.status().items()))
    elif action == "env":
        print(services.shell_lines())
    else:
        services.stop()
        wipe(places)
    return 0


if __name__ == "__main__":
    exit_with_sentence(main)
