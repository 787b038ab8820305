"""Threads, signals, forks."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import polars as pl
import pytest

import datafusion_rmq as rmq

# Hours of work, in small batches: an operator stops between two of its batches.
ENDLESS = "SELECT count(*) FROM generate_series(1, 1000000000000) AS t(x) WHERE x % 7 = 3"


def in_threads(count, work):
    failures = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_20_threads_share_a_connection():
    con = rmq.connect(target_partitions=2).register("shared", pl.DataFrame({"v": range(1000)}))

    def work(i):
        for round in range(5):
            # The same name is another frame in each thread.
            frame = pl.DataFrame({"v": [i, round]})
            assert con.sql("SELECT sum(v) AS s FROM frame").fetchall() == [(i + round,)]
            assert len(frame) == 2
            assert con.sql("SELECT range_max('shared.v', $1, $2) AS m", [i, 2 * i]).fetchall() == [(2 * i,)]
            con.register(f"t{i}", frame)
            assert con.sql(f"SELECT max(v) AS m FROM t{i}").fetchall() == [(max(i, round),)]
            con.deregister(f"t{i}")

    in_threads(20, work)
    assert con.tables() == ["shared"]


def test_20_threads_with_connections_of_their_own():
    def work(i):
        con = rmq.connect()
        con.sql("CREATE TABLE t AS SELECT $1 AS v", [i])
        assert con.sql("SELECT v FROM t").fetchall() == [(i,)]

    in_threads(20, work)


def test_other_threads_run_while_a_query_does():
    con = rmq.connect()
    counted = 0
    done = threading.Event()

    def count():
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)

    other = threading.Thread(target=count)
    other.start()
    con.sql("SELECT sum(x % 7) FROM generate_series(1, 5000000) AS t(x)").fetchall()
    seen = counted
    done.set()
    other.join()
    assert seen >= 3


def script(code, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs
    )


@pytest.mark.parametrize("ask", ["q.fetchall()", "q.to_arrow()", "q.explain(analyze=True)", "read(q.stream())"])
def test_ctrl_c(ask):
    child = script(f"""
        import time
        import datafusion_rmq as rmq, pyarrow as pa
        con = rmq.connect()
        q = con.sql({ENDLESS!r})
        read = lambda source: pa.RecordBatchReader.from_stream(source).read_all()
        print("started", flush=True)
        try:
            {ask}
        except KeyboardInterrupt:
            print("interrupted")
        except Exception as error:
            # A reader of a stream passes errors on as text.
            print("interrupted" if "KeyboardInterrupt" in str(error) else repr(error))
        # The session is usable, and the query does not run on.
        print(con.sql("SELECT 1").fetchall())
        used = time.process_time()
        time.sleep(0.5)
        print("idle" if time.process_time() - used < 0.3 else "busy")
        """)
    assert child.stdout.readline() == "started\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out.splitlines() == ["interrupted", "[(1,)]", "idle"]


BIG = "CREATE TABLE big AS SELECT value AS x, value % 7 AS k FROM generate_series(1, 60000)"
NUMBERS = "generate_series(1, 100000000000) AS t(x)"
# Queries of hours: some operators hold a worker for long, others yield often.
LONG = {
    "cross join": "SELECT count(*) FROM big a, big b, big c WHERE a.x + b.x + c.x = -1",
    "nested-loop join": "SELECT count(*) FROM big a JOIN big b ON a.x * b.x % 1000003 = -1 JOIN big c ON b.x * c.x % 1000003 = -1",
    "range join": """SELECT sum(n) FROM (SELECT a.x, sum(length(concat(b.k, a.x))) AS n FROM big a
                     LEFT JOIN big b ON b.x BETWEEN a.x - 50000 AND a.x GROUP BY a.x)""",
    "sort": f"SELECT x FROM {NUMBERS} ORDER BY x % 1000003 LIMIT 5",
    "grouping": f"SELECT x % 1000, count(*) FROM {NUMBERS} GROUP BY 1",
    "window": f"SELECT max(s) FROM (SELECT sum(x) OVER (PARTITION BY x % 3 ORDER BY x) AS s FROM {NUMBERS})",
    "recursion": "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r WHERE x < 1000000000) SELECT count(*) FROM r",
}


@pytest.mark.parametrize("kind", LONG)
def test_ctrl_c_is_heard_within_a_second(kind):
    child = script(f"""
        import os, time
        import datafusion_rmq as rmq
        con = rmq.connect()
        con.sql({BIG!r})
        q = con.sql({LONG[kind]!r})
        print("started", flush=True)
        try:
            q.fetchall()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        # One worker is free for this, even if the others are still at a batch.
        print(con.sql("SELECT 1").fetchall(), flush=True)
        # Nor does any worker compute on.
        for _ in range(10):
            used = time.process_time()
            time.sleep(0.3)
            if time.process_time() - used < 0.15:
                break
        else:
            print("busy", flush=True)
        os._exit(0)
        """)
    assert child.stdout.readline() == "started\n"
    time.sleep(1)
    sent = time.monotonic()
    child.send_signal(signal.SIGINT)
    killer = threading.Timer(60, child.kill)
    killer.start()
    assert child.stdout.readline() == "interrupted\n"
    assert time.monotonic() - sent < 1
    out, _ = child.communicate()
    killer.cancel()
    assert out == "[(1,)]\n" and time.monotonic() - sent < 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_use_after_fork_is_an_error():
    child = script("""
        import os
        import datafusion_rmq as rmq
        con = rmq.connect()
        con.sql("SELECT 1").fetchall()
        if os.fork() == 0:
            for use in (lambda: con.sql("SELECT 1"), lambda: rmq.connect().sql("SELECT 1")):
                try:
                    use()
                    print("it worked", flush=True)
                except RuntimeError as error:
                    print("forked" in str(error) and "'spawn'" in str(error), flush=True)
            os._exit(0)
        os.wait()
        print(con.sql("SELECT 2").fetchall())
        """)
    out, _ = child.communicate(timeout=60)
    assert out.splitlines() == ["True", "True", "[(2,)]"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_before_the_first_use_works():
    child = script("""
        import os
        import datafusion_rmq as rmq
        if os.fork() == 0:
            print(rmq.connect().sql("SELECT 1").fetchall(), flush=True)
            os._exit(0)
        os.wait()
        """)
    out, _ = child.communicate(timeout=60)
    assert out == "[(1,)]\n"


def _sum(n):
    import datafusion_rmq

    return datafusion_rmq.connect().sql("SELECT sum(value) AS s FROM generate_series(1, 9) WHERE value <= $1", [n]).fetchall()


def test_spawned_processes():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_sum, [3, 4]) == [[(6,)], [(10,)]]


def test_an_exit_while_a_query_runs():
    child = script(f"""
        import threading, time
        import datafusion_rmq as rmq
        con = rmq.connect()
        threading.Thread(target=lambda: con.sql({ENDLESS!r}).fetchall(), daemon=True).start()
        time.sleep(0.5)
        print("over")
        """)
    out, _ = child.communicate(timeout=60)
    assert out == "over\n" and child.returncode == 0
