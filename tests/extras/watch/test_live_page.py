"""A sweep's page: what it tells, to whom, and what a browser shows of it."""

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_sweep
import pytest
import sweep
from browsers import browser
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.summary.writer import event_file_writer

from lockstep.errors import ConfigError
from lockstep.extras.report.curves import LINES, POINTS, Curves, drawn
from lockstep.extras.watch.live_page import LivePage
from lockstep.sweeps.view import Watched

MARKUP = "</td><script>document.title='planted'</script>\"&"


def made(folder: Path) -> Path:
    """Three jobs, one failed; their names and reasons look like markup."""
    jobs = {fake_sweep.job(folder, i, seed=i): state for i, state in enumerate(("finished", "failed", "waiting"))}
    manifest = fake_sweep.sweep(folder, jobs)
    for number, job in enumerate(jobs):
        manifest.update(job.key, overrides=[f"name='{MARKUP}{number}'"])
    manifest.update(f"{1:012x}", reason=MARKUP)
    shutil.rmtree(next(iter(jobs)).directory / "tensorboard")
    logged(next(iter(jobs)).directory, range(0, 300, 10))
    (folder / "report").mkdir()
    (folder / "report" / "report.html").write_text("<p>the answer</p>")
    (folder / "secret.txt").write_text("secret")
    return folder


def logged(directory: Path, steps: range, **more: Any) -> None:
    logger = TensorBoardLogger(directory, name="tensorboard", version="", default_hp_metric=False, **more)
    for step in steps:
        logger.log_metrics({"train/loss_step": 1 / (1 + step), "lr": 0.1}, step=step)
    logger.log_metrics({"val/acc": 0.5, "train/loss": 0.1}, step=steps[-1])
    logger.finalize("success")


@contextmanager
def served(folder: Path) -> Iterator[LivePage]:
    with LivePage(Watched(folder), 0) as page:
        thread = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield page
        finally:
            page.shutdown()
            thread.join()


def asked(page: LivePage, path: str, method: str = "GET", host: str = "localhost:9999") -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", page.server_address[1], timeout=20)
    connection.putrequest(method, path, skip_host=True)
    if host:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content, answer.headers


def test_only_what_is_named_is_served_and_only_to_this_machine(tmp_path: Path) -> None:
    with served(made(tmp_path)) as page:
        assert page.server_address[0] == "127.0.0.1"
        assert [asked(page, path)[0] for path in ("/", "/table.json", "/curves.json", "/report.html", "/?x=1")] == [200] * 5
        outside = (
            "/secret.txt",
            "/../secret.txt",
            "/report.html/../../secret.txt",
            "/%2e%2e/secret.txt",
            "//etc/passwd",
            "/manifest.json",
        )
        assert [asked(page, path)[0] for path in outside] == [404] * len(outside)
        assert [asked(page, "/", method)[0] for method in ("POST", "PUT", "DELETE", "HEAD")] == [501] * 4
        hosts = ("evil.example", "evil.example:80", "localhost.evil.example", "", "[", "127.0.0.1.evil.example")
        assert {asked(page, "/table.json", host=host)[0] for host in hosts} <= {400, 403}
        assert [asked(page, "/", host=host)[0] for host in ("127.0.0.1:1", "localhost", "[::1]:80")] == [200] * 3


def test_nothing_but_its_own_script_runs_in_it(tmp_path: Path) -> None:
    with served(made(tmp_path)) as page:
        _, content, headers = asked(page, "/")
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        nonce = policy.partition("script-src 'nonce-")[2].partition("'")[0]
        assert content.count(f'<script nonce="{nonce}">') == content.count("<script") == 1
        assert "planted" not in content
        assert "script-src" not in asked(page, "/report.html")[2]["Content-Security-Policy"]
        assert "default-src 'none'" in asked(page, "/report.html")[2]["Content-Security-Policy"]


def test_the_table_is_that_of_the_terminal_and_a_directory_that_goes_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    with served(made(folder)) as page:
        told = json.loads(asked(page, "/table.json")[1])
        assert told["words"].startswith("1 of 3 jobs finished, 1 waiting, 1 failed · best val/acc 0.5 (job 0)")
        assert told["note"].startswith("No sweep process. Try again what failed: python ")
        assert (told["has_ended"], told["report"], told["jobs"][1]["reason"]) == (True, True, MARKUP)
        charts = json.loads(asked(page, "/curves.json")[1])["charts"]
        assert [(chart["name"], len(chart["lines"])) for chart in charts] == [("training loss", 1), ("val/acc", 1)]
        assert charts[0]["lines"][0]["points"][0] == [0, 1.0]
        shutil.rmtree(folder)
        page._seen = None
        assert "is gone" in json.loads(asked(page, "/table.json")[1])["error"]
        assert asked(page, "/report.html")[0] == 404


def test_a_port_that_is_taken_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(made(tmp_path)) as page:
        port = str(page.server_address[1])
        for taken in (port, "70000"):
            monkeypatch.setattr("sys.argv", ["sweep.py", "watch", str(tmp_path), "--web", "--port", taken])
            with pytest.raises(ConfigError, match=f"--port={taken}: .*; accepted is another port"):
                sweep.main()


def test_ctrl_c_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: LivePage) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LivePage, "serve_forever", interrupted)
    monkeypatch.setattr("sys.argv", ["sweep.py", "watch", str(made(tmp_path)), "--web", "--port", "0"])
    with pytest.raises(SystemExit) as left:
        sweep.main()
    assert left.value.code == 0
    said = capsys.readouterr().out
    port = said.partition("http://127.0.0.1:")[2].partition("/")[0]
    assert f"ssh -L {port}:127.0.0.1:{port} " in said


def test_curves_go_on_are_overwritten_and_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run's do: further steps, steps again after a kill, and another attempt after a failed one."""
    # Files of one second are read by their names' last number, in which the 10th of a process comes before its 9th.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    curves = Curves()
    assert curves.of(tmp_path, "val/acc") == ([], [])
    logged(tmp_path, range(0, 30, 10))
    loss, metric = curves.of(tmp_path, "val/acc")
    assert ([step for step, _ in loss], metric) == ([0, 10, 20], [(20, 0.5)])
    logged(tmp_path, range(15, 45, 10), purge_step=15)
    assert [step for step, _ in curves.of(tmp_path, "val/acc")[0]] == [0, 10, 15, 25, 35]
    logger = TensorBoardLogger(tmp_path, name="tensorboard", version="", default_hp_metric=False)
    logger.log_metrics({"val/acc": 0.75}, step=36)  # of the best checkpoint, at the end
    logger.finalize("success")
    assert [curves.of(tmp_path, "val/acc", is_over=over)[1] for over in (False, True)] == [[(35, 0.5), (36, 0.75)], [(35, 0.5)]]
    for path in tmp_path.glob("tensorboard/*"):
        path.unlink()
    logged(tmp_path, range(0, 20, 10))
    assert [step for step, _ in curves.of(tmp_path, "val/acc")[0]] == [0, 10]


def test_curves_of_the_csv_logger_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    rows = [f"{step},{1 / (1 + step)}," for step in range(1000)]
    lines = ["step,train/loss_step,val/acc", *rows, "999,,0.5", "1000,nan,", "10", "x"]
    (tmp_path / "csv" / "metrics.csv").write_text("\n".join(lines))
    loss, metric = Curves().of(tmp_path, "val/acc")
    assert (loss[0], loss[-1], metric) == ((0, 1.0), (999, 0.001), [(999, 0.5)])
    assert POINTS / 2 <= len(loss) <= POINTS + 1


def test_of_many_jobs_the_best_are_drawn(tmp_path: Path) -> None:
    manifest = fake_sweep.sweep(tmp_path, {fake_sweep.job(tmp_path, i, seed=i): "finished" for i in range(LINES + 5)})
    for number, job in enumerate(manifest.jobs.values()):
        job["metric"] = 0.0 if number == 3 else 1.0 / (1 + number)
    manifest.save()
    assert [job.number for job in drawn(Watched(tmp_path).look().jobs)] == [0, 1, 2, *range(4, LINES + 1)]


@pytest.mark.slow
@pytest.mark.browser
def test_a_browser_shows_it(tmp_path: Path) -> None:
    with browser() as chromium, served(made(tmp_path)) as server:
        for width, scheme in ((1200, "light"), (390, "dark")):
            page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            assert said_in(page, server.url, tmp_path.name) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width  # the table scrolls, not the page


def said_in(page: Any, url: str, name: str) -> list[str]:
    """Errors and warnings of a browser's page in which all is looked at and clicked."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(url)
    page.locator("#charts polyline").first.wait_for(timeout=60_000)
    assert page.locator("tbody tr").count() == 3
    assert f"name='{MARKUP}1'" in page.locator("tbody tr").nth(1).inner_text()
    assert MARKUP in page.locator("tbody tr .why").inner_text()
    assert page.title().startswith(f"{name}: 1 of 3 jobs")
    assert page.locator("#note code").inner_text().startswith("python ")
    page.locator("thead button", has_text="state").click()
    assert page.locator("tbody tr").first.get_attribute("class") == "failed"
    page.locator("tbody tr.finished button").click()
    assert page.locator("polyline.on").count() == 1
    with page.expect_popup() as opened:
        page.locator("#report").click()
    assert opened.value.inner_text("body") == "the answer"
    return said
