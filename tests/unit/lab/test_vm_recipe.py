"""The pure parts of the image: apt sources, module order, cpio archive, cache."""

import pytest

from lab.vm import apt, cache


def etc_apt(tmp_path, **files):
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        (tmp_path / name.replace("__", "/").replace("_", ".")).write_text(text)
    return tmp_path


def test_plain_sources_list(tmp_path):
    text = (
        "# a comment\n"
        "deb http://mirror.example/debian bookworm main contrib # why\n"
        "deb-src http://mirror.example/debian bookworm main\n"
        "deb [signed-by=/k.gpg] http://mirror.example/security bookworm-security main\n"
        "deb http://mirror.example/debian trixie main\n"
        "deb http://third.example/apt bookworm stable\n"
    )
    root = etc_apt(tmp_path, sources_list=text)
    lines, stanzas = apt.debian_sources(root, "bookworm")
    assert lines == (
        "deb http://mirror.example/debian bookworm main contrib\n"
        "deb [signed-by=/k.gpg] http://mirror.example/security bookworm-security main\n"
    )
    assert stanzas == ""


def test_deb822_sources_keep_their_fields_and_lose_other_suites(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        "Types: deb deb-src\nURIs: http://mirror.example/debian\n"
        "# bookworm only\nSuites: bookworm bookworm-updates bookworm-backports\n"
        "Components: main\nSigned-By:\n -----BEGIN-----\n x\n"
        "\nEnabled: no\nTypes: deb\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n"
        "\nTypes: deb\nURIs: http://third.example\nSuites: nodistro\nComponents: main\n"
    )
    lines, stanzas = apt.debian_sources(tmp_path, "bookworm")
    assert lines == ""
    assert "Suites: bookworm bookworm-updates\n" in stanzas
    assert "Types: deb\n" in stanzas
    assert "Signed-By:\n -----BEGIN-----\n x" in stanzas
    assert "off.example" not in stanzas
    assert "third.example" not in stanzas


def test_no_usable_source_is_an_error(tmp_path):
    root = etc_apt(tmp_path, sources_list="deb http://third.example/apt stable main\n")
    with pytest.raises(ValueError, match="no source of bookworm"):
        apt.debian_sources(root, "bookworm")


def test_an_older_release_comes_from_the_same_mirrors():
    text = "URIs: http://mirror/bookworm-copy\nSuites: bookworm bookworm-updates\n"
    text += "deb http://mirror/debian bookworm main\n"
    changed = apt.of_release(text, "bookworm", "bullseye")
    assert "http://mirror/bookworm-copy\n" in changed
    assert "Suites: bullseye bullseye-updates\n" in changed
    assert "deb http://mirror/debian bullseye main\n" in changed
    assert apt.of_release(text, "bookworm", "bookworm") == text


def test_codename():
    assert apt.codename('NAME="x"\nVERSION_CODENAME=bookworm\n') == "bookworm"
    with pytest.raises(ValueError, match="VERSION_CODENAME"):
        apt.codename('NAME="x"\n')


def test_cache_builds_once_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "ROOT", tmp_path / "vm")
    calls = []

    def build(out):
        calls.append(out)
        (out / "x").write_text("x")

    def fails(out):
        (out / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache.made_once("k", "1", fails)
    assert not list((tmp_path / "vm").glob("k-*"))
    assert not list((tmp_path / "vm").glob(".k-*"))
    first = cache.made_once("k", "1", build)
    assert cache.made_once("k", "1", build) == first
    assert len(calls) == 1
    assert (first / "x").read_text() == "x"
    cache.made_once("k", "2", build, keep=0)
    assert [p.name for p in (tmp_path / "vm").glob("k-*")] == ["k-2"]


def test_deleted_file_changes_the_digest(tmp_path):
    (tmp_path / "a.h").write_text("1")
    (tmp_path / "b.h").write_text("2")
    before = cache.files_digest(tmp_path, ("*.h",))
    (tmp_path / "b.h").unlink()
    assert cache.files_digest(tmp_path, ("*.h",)) != before
    assert cache.digest("ab", "c") != cache.digest("a", "bc")
