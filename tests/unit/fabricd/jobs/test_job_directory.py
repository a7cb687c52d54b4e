"""Job directories, made by root where another user planted things first."""

import os
import stat
import threading
from pathlib import Path

import pytest
from stats_page_files import NOW, lay, make
from typer.testing import CliRunner

import fabricd.cli
from fabricd.jobs import job_directory
from fabricd.jobs.directory import prepare_stats_directory
from fabricd.jobs.job_directory import JobDirectoryError
from telemetry.statsdir import StatsDirectory

ALICE, MALLORY, DAEMON = 1001, 1002, 64003

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root alone makes them")


@pytest.fixture
def stats(tmp_path):
    path = tmp_path / "stats"
    prepare_stats_directory(path, uid=DAEMON)
    os.chown(path, DAEMON, DAEMON)
    return path


def as_user(uid, directory, work):
    """Do it in a process of that user that is in the directory; whether it could."""
    pid = os.fork()
    if not pid:
        try:
            os.chdir(directory)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_its_user_writes_the_daemon_reads_and_nobody_else_looks_in(stats):
    path = job_directory.make(stats, "job-17", ALICE, ALICE)
    assert path == stats / "jobs/job-17"
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (ALICE, ALICE, 0o750)
    assert (stats / "jobs").stat().st_uid == 0
    jobs, mine = Path("jobs"), Path("jobs/job-17")
    assert as_user(ALICE, stats, lambda: (mine / "7-5.page").write_text("x"))
    assert as_user(DAEMON, stats, lambda: list(mine.iterdir()))
    assert as_user(DAEMON, stats, lambda: list(jobs.iterdir()))
    assert not as_user(MALLORY, stats, lambda: list(mine.iterdir()))
    assert not as_user(MALLORY, stats, lambda: list(jobs.iterdir()))
    assert not as_user(MALLORY, stats, lambda: (mine / "8-5.page").write_text("x"))
    assert not as_user(MALLORY, stats, lambda: (jobs / "job-18").mkdir())
    assert not as_user(MALLORY, stats, lambda: jobs.rename("mine"))
    assert not as_user(ALICE, stats, lambda: mine.rename("jobs/other"))
    assert as_user(MALLORY, stats, lambda: Path("job-20").mkdir()), "there is where she may"


def plant_directory(parent, victim):
    (parent / "jobs").mkdir()
    (parent / "jobs/job-17").mkdir()


def plant_empty(parent, victim):
    (parent / "jobs").mkdir()


def plant_link(parent, victim):
    (parent / "jobs").symlink_to(victim)


def plant_file(parent, victim):
    (parent / "jobs").write_text("x")


@pytest.mark.parametrize("plant", [plant_directory, plant_empty, plant_link, plant_file])
def test_what_another_user_planted_is_moved_aside_and_not_followed(stats, tmp_path, plant):
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    plant(stats, victim)
    planted = (stats / "jobs").lstat()
    os.chown(stats / "jobs", MALLORY, MALLORY, follow_symlinks=False)
    path = job_directory.make(stats, "job-17", ALICE, ALICE)
    assert path.stat().st_uid == ALICE
    assert (stats / "jobs").lstat().st_uid == 0
    assert stat.S_ISDIR((stats / "jobs").lstat().st_mode)
    assert (victim.stat().st_uid, list(victim.iterdir())) == (0, [])
    moved = [entry.lstat() for entry in stats.iterdir() if entry.name.startswith(".planted-")]
    assert [status.st_ino for status in moved] == [planted.st_ino]


def test_a_parent_that_others_may_write_is_not_trusted(stats):
    (stats / "jobs").mkdir()
    (stats / "jobs").chmod(0o1777)
    job_directory.make(stats, "job-17", ALICE, ALICE)
    assert not (stats / "jobs").stat().st_mode & 0o022


def test_who_plants_again_and_again_delays_and_gains_nothing(stats):
    stop, planted = threading.Event(), []

    def spin():
        while not stop.is_set():
            try:
                (stats / "jobs").mkdir()
                os.chown(stats / "jobs", MALLORY, MALLORY)
                planted.append(1)
            except OSError:
                pass

    (stats / "jobs").symlink_to("/etc")
    thread = threading.Thread(target=spin)
    thread.start()
    try:
        path = job_directory.make(stats, "job-17", ALICE, ALICE)
    finally:
        stop.set()
        thread.join()
    assert path.stat().st_uid == ALICE


def test_a_name_that_is_taken_is_refused_and_stays_its_users(stats):
    path = job_directory.make(stats, "job-17", ALICE, ALICE)
    (path / "7-5.page").write_text("x")
    with pytest.raises(JobDirectoryError, match='there is a "job-17"'):
        job_directory.make(stats, "job-17", MALLORY, MALLORY)
    assert path.stat().st_uid == ALICE
    job_directory.remove(stats, "job-17")
    assert not path.exists()
    job_directory.make(stats, "job-17", MALLORY, MALLORY)
    with pytest.raises(JobDirectoryError, match='there is no "job-18"'):
        job_directory.remove(stats, "job-18")


def test_removal_follows_no_link_of_the_job(stats, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    path = job_directory.make(stats, "job-17", ALICE, ALICE)
    (path / "link").symlink_to(victim)
    job_directory.remove(stats, "job-17")
    assert (victim / "kept").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", ".x", "a\n", "x" * 65, "-r"])
def test_names_are_plain(stats, name):
    for work in (lambda: job_directory.make(stats, name, ALICE, ALICE),
                 lambda: job_directory.remove(stats, name)):  # fmt: skip
        with pytest.raises(JobDirectoryError, match="letters, digits"):
            work()


def test_a_stats_directory_that_is_a_link_or_no_such_is_refused(stats, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/stats").symlink_to(stats)
    with pytest.raises(JobDirectoryError):
        job_directory.make(tmp_path / "run/stats", "job-17", ALICE, ALICE)
    with pytest.raises(JobDirectoryError, match="sticky"):
        job_directory.make(tmp_path / "run", "job-17", ALICE, ALICE)


def test_pages_there_are_read_and_those_below_a_planted_parent_are_not(stats):
    path = job_directory.make(stats, "job-17", ALICE, ALICE)
    lay(path, make(pid=7, job=b"real"), 7)
    lay(path / "deeper", make(pid=8), 8)
    reader = StatsDirectory(stats, seen=lambda *_: True)
    (page,) = reader.scan(NOW)
    assert (page.subdirectory, page.page.job) == ("jobs/job-17", "real")
    assert reader.remove(page)
    lay(path, make(pid=7, job=b"real"), 7)
    os.chown(stats / "jobs", MALLORY, MALLORY)
    assert StatsDirectory(stats, seen=lambda *_: True).scan(NOW) == []


def test_directories_of_others_take_no_place_of_roots(stats, monkeypatch):
    monkeypatch.setattr("telemetry.statslisting.MAX_SUBDIRECTORIES", 4)
    for number in range(50):
        (stats / f"a{number}").mkdir()
    lay(job_directory.make(stats, "job-17", ALICE, ALICE), make(pid=7, job=b"real"), 7)
    for number in range(50):
        (stats / f"b{number}").mkdir()
    (page,) = StatsDirectory(stats, seen=lambda *_: True).scan(NOW)
    assert page.page.job == "real"


def test_the_command(stats):
    def run(*words):
        env = {"FABRIC_RUN_DIR": str(stats.parent)}
        return CliRunner().invoke(fabricd.cli.app, ["job-directory", *words], env=env)

    done = run("make", "job-17", "--uid", "1001", "--gid", "1001")
    assert (done.exit_code, done.stdout) == (0, f"{stats}/jobs/job-17\n")
    assert run("make", "job-17", "--uid", "1001", "--gid", "1001").exit_code == 1
    assert run("make", "job-18", "--uid", str(2**31)).exit_code == 1, "no group known"
    assert run("remove", "job-17").exit_code == 0
    assert run("remove", "job-17").exit_code == 1
