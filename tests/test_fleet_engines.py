"""Engines: the same ends of the same tasks in this process, in processes of this machine, and on Dask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fleet_helpers import address, all_gone, is_running, local_cluster, wait_until
from fleet_tasks import Told, do, process, threads

from sp_profiler.errors import InputError, SpProfilerError, UsageError
from sp_profiler.fleet.cluster import Cluster, ClusterError, scheduler_of
from sp_profiler.fleet.engines import Done, Engine, Failed, InProcess, Policy, engine_of
from sp_profiler.fleet.processes import Processes
from sp_profiler.fleet.work import Work

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_cluster() as found:
        yield found


@pytest.fixture(params=["in-process", "processes:2", "dask"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    words = request.param
    if words == "dask":
        words = address(request.getfixturevalue("cluster"))
    with engine_of(words, Policy(retries=1)) as found:
        yield found


def ends(engine: Engine, tasks: list[Told], **limits: Any) -> dict[int, Any]:
    """The end of each task by its number; each is told once."""
    found = list(engine.run(do, tasks, **limits))
    assert len(found) == len(tasks)
    return {end.task.number: end for end in found}


def test_every_task_ends_once_and_its_value_comes_back(engine: Engine, tmp_path: Path) -> None:
    engine.check(Work(str(tmp_path)))
    found = ends(engine, [Told(number) for number in range(40)])
    assert {number: end.value for number, end in found.items()} == {n: 2 * n for n in range(40)}
    assert list(engine.run(do, [])) == []


def test_what_raises_is_tried_again_and_then_given_up_with_its_reason(engine: Engine, tmp_path: Path) -> None:
    tasks = [
        Told(1, "raise", str(tmp_path)),
        Told(2, "refuse", str(tmp_path)),
        Told(3, "raise-once", str(tmp_path)),
        Told(4),
    ]
    found = ends(engine, tasks)
    assert found[1] == Failed(tasks[0], "ValueError: number 1 says no", tries=2)
    refused = found[2]
    assert isinstance(refused, Failed)
    assert isinstance(refused.error, InputError)
    assert str(refused.error) == "number 2 is no trace"
    assert found[3] == Done(tasks[2], 6)
    assert found[4] == Done(tasks[3], 8)
    assert [task.tries() for task in tasks[:3]] == [2, 1, 2]  # what the user is told is final


@pytest.fixture(params=["processes:2", "dask"])
def apart(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Engines whose tasks run in processes of their own."""
    words = request.param
    if words == "dask":
        words = address(request.getfixturevalue("cluster"))
    with engine_of(words, Policy(retries=1)) as found:
        yield found


def test_a_worker_that_dies_takes_only_its_task_with_it(apart: Engine, tmp_path: Path) -> None:
    tasks = [Told(number) for number in range(10)]
    tasks += [Told(10, "die", str(tmp_path)), Told(11, "die-once", str(tmp_path))]
    found = ends(apart, tasks[::-1])
    assert [found[number].value for number in range(10)] == [2 * number for number in range(10)]
    assert found[11].value == 22
    assert found[10].reason == ("its process was killed by SIGKILL, as the system does when memory runs out")
    assert (found[10].tries, tasks[10].tries(), tasks[11].tries()) == (2, 2, 2)


def test_a_task_that_exceeds_its_time_is_killed_and_tried_again(apart: Engine, tmp_path: Path) -> None:
    tasks = [Told(1, "hang", str(tmp_path)), Told(2, "hang-once", str(tmp_path)), Told(3)]
    found = ends(apart, tasks, timeout_s=1.5)
    assert found[1] == Failed(tasks[0], "it took longer than 1.5 s", tries=2)
    assert (found[2].value, found[3].value) == (4, 6)
    pids = [int(one.name.rpartition("-")[2]) for one in tmp_path.iterdir()]
    all_gone([pid for pid, task in zip(pids, tmp_path.iterdir(), strict=True) if task.name[0] == "1"])


def test_workers_have_one_thread_and_are_kept_between_runs(apart: Engine) -> None:
    assert {end.value for end in apart.run(threads, [Told(1)]) if isinstance(end, Done)} == {"11"}
    pids = [{end.value for end in apart.run(process, map(Told, range(20))) if isinstance(end, Done)}]
    pids.append({end.value for end in apart.run(process, map(Told, range(20))) if isinstance(end, Done)})
    assert len(pids[0] | pids[1]) <= 2
    assert os.getpid() not in pids[0]


def test_tasks_are_taken_as_workers_become_free(apart: Engine, tmp_path: Path) -> None:
    """Neither the tasks of a large run nor their results are all in memory."""
    taken: list[int] = []

    def tasks() -> Iterator[Told]:
        for number in range(150):
            taken.append(number)
            yield Told(number)

    ahead = [len(taken) - place for place, _ in enumerate(apart.run(do, tasks()))]
    assert max(ahead) <= 10


def test_no_process_is_left_when_the_engine_is(cluster: Any, tmp_path: Path) -> None:
    for words in ("processes:2", address(cluster)):
        with engine_of(words) as engine:
            pids = [end.value for end in engine.run(process, map(Told, range(8))) if isinstance(end, Done)]
            assert any(is_running(pid) for pid in pids)
        all_gone(pids)


def test_an_abandoned_run_leaves_nothing_running(tmp_path: Path) -> None:
    with Processes(2) as engine:
        run = engine.run(do, [Told(2, "hang", str(tmp_path)), Told(1)])
        assert next(run) == Done(Told(1), 2)
        wait_until(lambda: len(list(tmp_path.iterdir())) == 1, "the other task began")
        run.close()  # type: ignore[attr-defined]
        all_gone([int(one.name.rpartition("-")[2]) for one in tmp_path.iterdir()])
        assert [end.value for end in engine.run(do, [Told(4)]) if isinstance(end, Done)] == [8]


def test_an_idle_worker_that_was_killed_is_replaced() -> None:
    with Processes(1, Policy(retries=0)) as engine:
        (first,) = engine.run(process, [Told(1)])
        assert isinstance(first, Done)
        os.kill(first.value, signal.SIGKILL)
        all_gone([first.value])
        (second,) = engine.run(process, [Told(1)])
        assert isinstance(second, Done), second
        assert second.value != first.value


def test_what_tasks_print_is_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    with Processes(1) as engine:
        assert list(engine.run(do, [Told(5, "print")])) == [Done(Told(5, "print"), 10)]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "more of it" in captured.err


def test_workers_do_not_run_the_program_that_calls_us(tmp_path: Path) -> None:
    """A script without `if __name__ == "__main__"` is not started again and again."""
    script = tmp_path / "script.py"
    script.write_text(
        "from fleet_tasks import Told, sees_main\n"
        "from sp_profiler.fleet.processes import Processes\n"
        "print('once')\n"
        "with Processes(2) as engine:\n"
        "    print([end.value for end in engine.run(sees_main, [Told(1)])])\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("once") == 1
    assert "worker.py" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot ask for it")
def test_workers_end_with_a_coordinator_that_is_killed(tmp_path: Path) -> None:
    script = (
        "from fleet_tasks import Told, do\n"
        "from sp_profiler.fleet.processes import Processes\n"
        "with Processes(2) as engine:\n"
        f"    list(engine.run(do, [Told(n, 'hang', {str(tmp_path)!r}) for n in (1, 2)]))\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    coordinator = subprocess.Popen([sys.executable, "-c", script], env=env)
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both tasks began", 60)
        workers = [one.pid for one in psutil.Process(coordinator.pid).children(recursive=True)]
        assert len(workers) == 2
    finally:
        coordinator.kill()
        coordinator.wait()
    all_gone(workers)


# --- names, and clusters that will not do ----------------------------------------------------------------


@pytest.mark.parametrize(
    "words", ["", "threads", "processes:0", "processes:many", "processes:", "http://x:1", "in-process:2"]
)
def test_an_unknown_engine_is_a_matter_of_usage(words: str) -> None:
    with pytest.raises(UsageError, match="expected in-process, processes, processes:N or dask://HOST:PORT"):
        engine_of(words)


def test_engines_by_name() -> None:
    assert isinstance(engine_of("in-process"), InProcess)
    assert engine_of("processes:3").name == "processes:3"
    assert engine_of("processes").name == f"processes:{len(os.sched_getaffinity(0))}"
    assert engine_of("dask://node-1:8786").name == "dask://node-1:8786"
    assert scheduler_of("dask://node-1:8786") == "tcp://node-1:8786"
    assert scheduler_of("dask+tls://[::1]:8786") == "tls://[::1]:8786"
    for words in ("dask://", "dask://node-1", "dask://node-1:", "dask://:8786", "dask://node-1:port"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            engine_of(words)


def test_a_cluster_that_does_not_answer_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sp_profiler.fleet.cluster.CONNECT_S", 1.0)
    with pytest.raises(ClusterError) as told, engine_of("dask://127.0.0.1:9"):
        pass
    assert str(told.value) == "no Dask scheduler answers at dask://127.0.0.1:9"
    assert told.value.exit_code == 3


def test_without_the_extra_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'sp-profiler\[cluster\]'"):
        engine_of("dask://127.0.0.1:9")


def test_a_cluster_without_workers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sp_profiler.fleet.cluster.CONNECT_S", 1.0)
    with (
        local_cluster(workers=0) as empty,
        pytest.raises(ClusterError, match="has no workers"),
        engine_of(address(empty)),
    ):
        pass


def test_workers_of_another_version_are_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sp_profiler.fleet.cluster.__version__", "99.0")
    with pytest.raises(ClusterError, match=r"has sp-profiler [\d.]+, not 99\.0"), engine_of(address(cluster)):
        pass


def test_a_worker_that_does_not_see_the_work_folder_is_told(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_of(address(cluster)) as engine:
        engine.check(Work(str(tmp_path)))
        monkeypatch.setattr(Path, "touch", lambda self: None)  # as on a disk of this machine alone
        with pytest.raises(ClusterError, match="does not see the work folder"):
            engine.check(Work(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_dask_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    with local_cluster() as mine, engine_of(address(mine)) as engine:
        tasks = [Told(number, "wait", str(tmp_path)) for number in range(6)]
        run = engine.run(do, tasks)
        worker = next(iter(mine.workers.values())).process.process.pid
        found: list[Any] = []
        consumer = threading.Thread(target=lambda: found.extend(run))
        consumer.start()
        wait_until(lambda: len(list(tmp_path.iterdir())) >= 2, "tasks began on both workers")
        os.kill(worker, signal.SIGKILL)
        (tmp_path / "go").touch()
        consumer.join(60)
        assert sorted(end.value for end in found) == [2 * number for number in range(6)]


def test_a_scheduler_that_is_gone_is_told(tmp_path: Path) -> None:
    with local_cluster(1) as mine, engine_of(address(mine)) as engine:
        assert isinstance(engine, Cluster)
        run = engine.run(do, [Told(1), Told(2, "hang", str(tmp_path)), Told(3)])
        next(run)
        wait_until(lambda: bool(list(tmp_path.iterdir())), "the second task began")
        mine.close()
        with pytest.raises(SpProfilerError, match="is gone"):
            list(run)
